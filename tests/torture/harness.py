"""Faults that can be injected again: seeded cases, the lanes that run them, children under watch.

A kind of faults is a function of a `Case`, which injects what its random numbers say and raises
`Lost` if the promise of docs/guides/reliability.md does not hold. Lanes are forked, so that a case
may hang or crash, and so that torch is imported once for all of them.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

# The sanitizers map terabytes of address space for themselves.
IS_SANITIZED = "asan" in os.environ.get("LD_PRELOAD", "")
ADDRESS_SPACE_BYTES = 3 * 2**30
# Above what the parent has when it forks, which is mostly torch.
MAX_CHILD_GROWTH_BYTES = 600 * 2**20
CHILD_SECONDS = 150.0
# A case that takes longer hangs.
CASE_SECONDS = 300
FORK = multiprocessing.get_context("fork")


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
    """The folder of the whole run."""
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
        self.made = self.work / "made"
        """The artefacts that faults are injected into."""

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
    """Cases in a quick run."""


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
    num_cases: int,
    seconds: float,
) -> None:
    """Run cases until their number or the time is used up, several at a time.

    Each lane runs every n-th case, and is begun anew behind one that ended it.
    """
    deadline = time.monotonic() + seconds
    lanes: dict[Connection, tuple[Any, int | None]] = {}
    first_cases = list(range(num_lanes))
    while first_cases or lanes:
        for first in first_cases:
            reader, writer = FORK.Pipe(duplex=False)
            numbers = range(first, num_cases, num_lanes)
            process = FORK.Process(
                target=_run_lane, args=(kind, make_case, numbers, deadline, writer)
            )
            process.start()
            writer.close()
            lanes[reader] = process, None
        first_cases = []
        wait(lanes, timeout=1.0)
        for reader, (process, current) in list(lanes.items()):
            # Asked first: of a process that has ended, everything it told has arrived.
            has_ended = not process.is_alive()
            with contextlib.suppress(EOFError):
                while reader.poll():
                    current, outcome = reader.recv()
                    if outcome is not None:
                        results.add(make_case(current), outcome)
                        current = None
            lanes[reader] = process, current
            if has_ended:
                del lanes[reader]
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                if current is not None:
                    reason = f"the process ended with status {process.exitcode}"
                    if process.exitcode == -signal.SIGALRM:
                        reason = "it never ended"
                    results.add(make_case(current), {"lost": reason})
                    first_cases.append(current + num_lanes)


def _run_lane(
    kind: Kind, make_case: Callable[[int], Case], numbers: range, deadline: float, told: Connection
) -> None:
    os.setsid()
    limit_address_space(ADDRESS_SPACE_BYTES)
    for number in numbers:
        if time.monotonic() > deadline:
            break
        signal.alarm(CASE_SECONDS)
        told.send((number, None))
        told.send((number, run_case(kind, make_case(number))))
    os._exit(0)


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
        # Nobody expected it: where in the package it was raised, and what it says.
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.line]
        ours = [frame for frame in frames if "/groundup/" in frame.filename] or frames
        place = f"{Path(ours[-1].filename).name}, line {ours[-1].lineno}"
        outcome["lost"] = f"{type(error).__name__} in {place}: {str(error)[:200]}"
    finally:
        shutil.rmtree(case.place, ignore_errors=True)
    return {**outcome, "row": case.row, "num_faults": case.num_faults, "notes": case.notes}


def limit_address_space(num_bytes: int | None) -> None:
    """Nothing here may take the machine with it; None lifts the limit again."""
    if not IS_SANITIZED:
        limit = memory_of("self", "VmSize") + num_bytes if num_bytes else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def memory_of(pid: int | str, name: str) -> int:
    """A line of /proc/PID/status in bytes; 0 where there is none."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0


@contextlib.contextmanager
def bounded(case: Case, max_growth_bytes: int, max_seconds: float) -> Iterator[None]:
    """Work in this process that must stay within memory and time, refused or not."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    before, begin = memory_of("self", "VmRSS"), time.process_time()
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
        refused = error
    seconds = time.process_time() - begin
    growth = memory_of("self", "VmHWM") - before
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
    error: str
    seconds: float
    growth_bytes: int

    def check(self, expected: Sequence[int] = (0, 1, 2)) -> None:
        """Raise `Lost` unless it ended well, or in one line that says why not."""
        last = self.error.strip().splitlines()[-1:] or [""]
        if "Traceback (most recent call last)" in self.error:
            raise Lost(f"a traceback: {last[0]}")
        if self.status not in expected:
            raise Lost(f"it ended with status {self.status}: {self.error[-500:]}")
        if self.status > 0 and not last[0].startswith("error: "):
            raise Lost(f"status {self.status} without an error line: {last[0]}")
        if self.growth_bytes > MAX_CHILD_GROWTH_BYTES:
            raise Lost(f"it grew by {self.growth_bytes / 2**20:.0f} MB")


class Child:
    """A command line in a process of its own, forked so that nothing is imported again.

    What it says goes through pipes: limits on the sizes of files do not concern them.
    """

    def __init__(
        self, place: Path, argv: Sequence[str], before: Callable[[], None] | None = None
    ) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self._begin = time.monotonic()
        self._base = memory_of("self", "VmRSS")
        self.said = [b"", b""]
        pipes = [os.pipe() for _ in self.said]
        self._readers = [reader for reader, _ in pipes]
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            for number, (_, writer) in enumerate(pipes, start=1):
                os.dup2(writer, number)
            _run_command(place, argv, before)
        for reader, writer in pipes:
            os.set_blocking(reader, False)
            os.close(writer)

    def listen(self) -> None:
        """Take what it has said so far; it must be done now and then."""
        for number, reader in enumerate(self._readers):
            with contextlib.suppress(BlockingIOError):
                while data := os.read(reader, 1 << 16):
                    self.said[number] += data

    def wait(self, seconds: float = CHILD_SECONDS, kill: bool = False) -> Ended:
        """Wait so long for the end; then it is killed, which is the fault or a failure."""
        end = time.monotonic() + seconds
        pid = 0
        while not pid:
            self.listen()
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if not pid and time.monotonic() >= end:
                os.kill(self.pid, signal.SIGKILL)
                pid, status, usage = os.wait4(self.pid, 0)
                if not kill:
                    raise Lost(f"it had not ended after {seconds:.0f} s")
            elif not pid:
                time.sleep(min(0.002, max(0.0, end - time.monotonic())))
        self.listen()
        for reader in self._readers:
            os.close(reader)
        growth = max(0, usage.ru_maxrss * 1024 - self._base)
        error = self.said[1].decode("utf-8", "replace")
        return Ended(
            os.waitstatus_to_exitcode(status), error, time.monotonic() - self._begin, growth
        )


def _run_command(place: Path, argv: Sequence[str], before: Callable[[], None] | None) -> NoReturn:
    status = 1
    try:
        os.chdir(place)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
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
