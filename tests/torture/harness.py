"""Faults that can be injected again: seeded cases, the lanes that run them, children under watch.

A kind of faults is a function of a `Case`, which injects what its random numbers say and raises
`Lost` if the promise of docs/guides/reliability.md does not hold. Lanes are forked, so that a case
may hang or crash, and so that torch is imported once for all of them.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

# The sanitizers map terabytes of address space for themselves.
IS_SANITIZED = "asan" in os.environ.get("LD_PRELOAD", "")
ADDRESS_SPACE_BYTES = 3 * 2**30
# Above what the parent has when it forks, which is mostly torch.
MAX_CHILD_GROWTH_BYTES = 600 * 2**20
CHILD_SECONDS = 150.0


class Lost(Exception):
    """A promise was broken; the message says how."""


class Impossible(Exception):
    """This machine cannot make the fault; the message says why."""


@dataclass
class Case:
    """One fault, or a few of the same kind, with everything that decides over it."""

    kind: str
    seed: int
    number: int
    work: Path
    """The folder of the whole run, in which the artefacts lie that faults are injected into."""
    quick: bool
    """Leave out what takes several seconds."""

    row: str = ""
    """The line of the table that it counts for."""
    num_faults: int = 1
    notes: dict[str, float] = field(default_factory=dict)
    """Measurements; the table shows the greatest."""

    def __post_init__(self) -> None:
        self.random = random.Random(f"{self.seed}/{self.kind}/{self.number}")
        self.place = self.work / "cases" / f"{self.kind}-{self.number}"

    def note(self, name: str, value: float) -> None:
        self.notes[name] = max(value, self.notes.get(name, 0.0))

    def pick(self, names: Sequence[str]) -> str:
        """Each in its turn, so that a short run too has some of all."""
        # Lanes take every n-th case: the shift lets all of them come to all names.
        return names[(self.number + self.number // len(names)) % len(names)]


@dataclass(frozen=True)
class Kind:
    """A kind of faults: its cases, and what fraction of a run's time it gets."""

    name: str
    inject: Callable[[Case], None]
    fraction: float
    num_quick: int
    """Cases in the run of a minute."""
    in_parallel: bool = True
    patience_seconds: float = 2 * CHILD_SECONDS
    """A case that takes longer hangs."""


@dataclass
class Row:
    """What became of the faults of one line of the table."""

    faults: int = 0
    lost: int = 0
    notes: dict[str, float] = field(default_factory=dict)


@dataclass
class Results:
    """What became of all faults."""

    rows: dict[str, Row] = field(default_factory=dict)
    losses: dict[str, list[str]] = field(default_factory=dict)
    """By what was lost: the commands that show it again."""
    impossible: dict[str, str] = field(default_factory=dict)

    def add(self, case: Case, outcome: dict[str, Any]) -> None:
        name = outcome.get("row") or case.kind
        if reason := outcome.get("impossible"):
            self.impossible[name] = reason
            return
        row = self.rows.setdefault(name, Row())
        row.faults += outcome.get("num_faults", 1)
        for note, value in outcome.get("notes", {}).items():
            row.notes[note] = max(value, row.notes.get(note, 0.0))
        if reason := outcome.get("lost"):
            row.lost += 1
            again = f"python tests/torture --seed {case.seed} --case {case.kind}/{case.number}"
            self.losses.setdefault(f"{name}: {reason}", []).append(again)


def run_kind(
    kind: Kind,
    make_case: Callable[[int], Case],
    results: Results,
    num_lanes: int,
    num_cases: int | None,
    seconds: float,
) -> None:
    """Run cases until their number or the time is used up, several at a time."""
    deadline = time.monotonic() + seconds
    lanes = [
        _Lane(kind, make_case, first, num_lanes, num_cases, deadline) for first in range(num_lanes)
    ]
    running = list(lanes)
    while running:
        ready, _, _ = select.select([lane.pipe for lane in running], [], [], 1.0)
        for lane in running[:]:
            if lane.pipe in ready:
                for number, outcome in lane.read():
                    results.add(make_case(number), outcome)
            lane.end_if_stuck()
            if lane.has_ended:
                running.remove(lane)


class _Lane:
    """A process that runs every n-th case, and is begun anew behind one that ended it."""

    def __init__(
        self,
        kind: Kind,
        make_case: Callable[[int], Case],
        first: int,
        step: int,
        num_cases: int | None,
        deadline: float,
    ) -> None:
        self._kind, self._make_case, self._step = kind, make_case, step
        self._num_cases, self._deadline = num_cases, deadline
        self.has_ended = False
        self._begin(first)

    def _begin(self, first: int) -> None:
        reader, writer = os.pipe()
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(reader)
            os.setsid()
            self._run(first, writer)
        os.close(writer)
        self.pipe, self._rest = reader, b""
        self._current: int | None = None
        self._changed = time.monotonic()
        self._is_stuck = False

    def _run(self, first: int, writer: int) -> NoReturn:
        limit_address_space(ADDRESS_SPACE_BYTES)
        for number in itertools.count(first, self._step):
            is_over = time.monotonic() > self._deadline
            if is_over or (self._num_cases is not None and number >= self._num_cases):
                break
            os.write(writer, json.dumps([number, None]).encode() + b"\n")
            outcome = run_case(self._kind, self._make_case(number))
            os.write(writer, json.dumps([number, outcome]).encode() + b"\n")
        os._exit(0)

    def read(self) -> Iterator[tuple[int, dict[str, Any]]]:
        data = os.read(self.pipe, 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._changed = time.monotonic()
        for line in lines:
            number, outcome = json.loads(line)
            self._current = None if outcome else number
            if outcome:
                yield number, outcome
        if data:
            return
        os.close(self.pipe)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        _, status = os.waitpid(self._pid, 0)
        if self._current is None:
            self.has_ended = True
            return
        died = f"the process ended with status {os.waitstatus_to_exitcode(status)}"
        number = self._current
        yield number, {"lost": "it never ended" if self._is_stuck else died}
        self._begin(number + self._step)

    def end_if_stuck(self) -> None:
        if time.monotonic() - self._changed > self._kind.patience_seconds and not self._is_stuck:
            self._is_stuck = True
            os.killpg(self._pid, signal.SIGKILL)


def run_case(kind: Kind, case: Case) -> dict[str, Any]:
    """Inject, and say what became of it."""
    case.place.mkdir(parents=True, exist_ok=True)
    outcome: dict[str, Any] = {}
    try:
        kind.inject(case)
    except Lost as lost:
        outcome["lost"] = str(lost)
    except Impossible as impossible:
        outcome["impossible"] = str(impossible)
    except BaseException as error:
        outcome["lost"] = explain(error)
    finally:
        shutil.rmtree(case.place, ignore_errors=True)
    return {**outcome, "row": case.row, "num_faults": case.num_faults, "notes": case.notes}


def explain(error: BaseException) -> str:
    """An exception that nobody expected: where in the package it was raised, and what it says."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.line]
    ours = [frame for frame in frames if "/groundup/" in frame.filename] or frames
    place = f"{Path(ours[-1].filename).name}, line {ours[-1].lineno}" if ours else "no place"
    return f"{type(error).__name__} in {place}: {str(error)[:200]}"


def limit_address_space(num_bytes: int | None) -> None:
    """Nothing here may take the machine with it; None lifts the limit again."""
    if not IS_SANITIZED:
        limit = own_memory("VmSize") + num_bytes if num_bytes else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def own_memory(name: str, pid: int | str = "self") -> int:
    """A line of /proc/PID/status in bytes; 0 where there is none."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0


@contextlib.contextmanager
def bounded(case: Case, max_growth_bytes: int, max_seconds: float) -> Iterator[None]:
    """Work in this process that must stay within memory and time."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    before, begin = own_memory("VmRSS"), time.process_time()
    refused: Exception | None = None
    try:
        yield
    except MemoryError:
        # Without more of it not even this can be told.
        limit_address_space(None)
        gc.collect()
        limit_address_space(ADDRESS_SPACE_BYTES)
        raise Lost("it asked for more memory than there is") from None
    except Exception as error:
        # The limits hold for what is refused as well.
        refused = error
    seconds = time.process_time() - begin
    growth = own_memory("VmHWM") - before
    case.note("seconds", seconds)
    case.note("MB", growth / 2**20)
    if seconds > max_seconds:
        raise Lost(f"it took {seconds:.1f} s")
    if growth > max_growth_bytes and not IS_SANITIZED:
        raise Lost(f"it grew by {growth / 2**20:.0f} MB")
    if refused is not None:
        raise refused


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int
    """Its exit status; below 0 the signal that ended it."""
    out: str
    error: str
    seconds: float
    growth_bytes: int

    def check(self, *, expect: Sequence[int] = (0, 1, 2), signals: Sequence[int] = ()) -> None:
        """Raise `Lost` unless it ended well, or in one line that says why not."""
        last = self.error.strip().splitlines()[-1:] or [""]
        if "Traceback (most recent call last)" in self.error:
            raise Lost(f"a traceback: {last[0]}")
        if self.status not in (*expect, *(-number for number in signals)):
            raise Lost(f"it ended with status {self.status}: {self.error[-500:]}")
        if self.status > 0 and not last[0].startswith("error: "):
            raise Lost(f"status {self.status} without an error line: {last[0]}")
        if self.growth_bytes > MAX_CHILD_GROWTH_BYTES:
            raise Lost(f"it grew by {self.growth_bytes / 2**20:.0f} MB")


class Child:
    """A command line in a process of its own, forked so that nothing is imported again."""

    def __init__(
        self, place: Path, argv: Sequence[str], before: Callable[[], None] | None = None
    ) -> None:
        place.mkdir(parents=True, exist_ok=True)
        logs = Path(f"{place}.logs")
        logs.mkdir(exist_ok=True)
        self._logs = {name: logs / name for name in ("out", "error")}
        self._begin = time.monotonic()
        self._base = own_memory("VmRSS")
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(place, argv, before)

    def _run(self, place: Path, argv: Sequence[str], before: Callable[[], None] | None) -> NoReturn:
        status = 1
        try:
            os.chdir(place)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for number, path in enumerate(self._logs.values(), start=1):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), number)
            if before is not None:
                before()
            # The parent's streams remember what kind of file they were opened on.
            sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
            from groundup.cli.main import main

            status = main(argv)
            sys.stdout.flush()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def wait(self, seconds: float = CHILD_SECONDS, kill: bool = False) -> Ended:
        """Wait so long for the end; then it is killed, which is the fault or a failure."""
        end = time.monotonic() + seconds
        status, usage = None, None
        while status is None:
            pid, found, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                status = os.waitstatus_to_exitcode(found)
            elif time.monotonic() >= end:
                os.kill(self.pid, signal.SIGKILL)
                _, found, usage = os.wait4(self.pid, 0)
                status = os.waitstatus_to_exitcode(found)
                if not kill:
                    raise Lost(f"it had not ended after {seconds:.0f} s")
            else:
                time.sleep(min(0.002, max(0.0, end - time.monotonic())))
        assert usage is not None
        out, error = (
            path.read_text("utf-8", "replace") if path.is_file() else ""
            for path in self._logs.values()
        )
        growth = max(0, usage.ru_maxrss * 1024 - self._base)
        return Ended(status, out, error, time.monotonic() - self._begin, growth)


def groundup(place: Path, *argv: str) -> Ended:
    """Run a command line that must succeed."""
    ended = Child(place, argv).wait()
    if ended.status:
        raise Lost(f"groundup {' '.join(argv)} ended with {ended.status}: {ended.error[-800:]}")
    return ended
