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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

# The sanitizers map terabytes of address space for themselves.
IS_SANITIZED = "asan" in os.environ.get("LD_PRELOAD", "")
ADDRESS_SPACE_BYTES = 3 * 2**30
CHILD_SECONDS = 240.0
# A case that takes longer hangs.
CASE_SECONDS = 600
FORK = multiprocessing.get_context("fork")


class Lost(Exception):
    """A promise was broken; the message says how."""


@dataclass
class Case:
    """One fault, or a few of the same kind, with everything that decides over it."""

    kind: str
    seed: int
    number: int
    work: Path
    """The folder of the whole run."""

    row: str = ""
    """The line of the table that it counts for."""
    what: str = ""
    """What exactly is done there."""
    num_faults: int = 1
    counts: Counter[str] = field(default_factory=Counter)
    """What else is counted: the table has the sums."""

    def __post_init__(self) -> None:
        self.random = random.Random(f"{self.seed}/{self.kind}/{self.number}")
        self.place = self.work / "cases" / f"{self.kind}-{self.number}"
        self.made = self.work / "made"
        """The artefacts that faults are injected into."""

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
    counts: Counter[str] = field(default_factory=Counter)


@dataclass
class Results:
    """What became of all faults."""

    rows: dict[str, Row] = field(default_factory=dict)
    losses: dict[str, list[str]] = field(default_factory=dict)
    """By what was lost: the commands that show it again."""

    def add(self, case: Case, outcome: dict[str, Any]) -> None:
        name = outcome.get("row") or case.kind
        row = self.rows.setdefault(name, Row())
        row.faults += outcome.get("num_faults", 1)
        row.counts.update(outcome.get("counts", {}))
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
    until_lost: bool = False,
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
            if has_ended or (until_lost and results.losses):
                del lanes[reader]
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                if current is not None and has_ended:
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
        outcome["lost"] = f"{case.what}: {lost}" if case.what else str(lost)
    except BaseException as error:
        # Nobody expected it: where in the package it was raised, and what it says.
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.line]
        ours = [frame for frame in frames if "/groundup/" in frame.filename] or frames
        place = f"{Path(ours[-1].filename).name}, line {ours[-1].lineno}"
        reason = f"{type(error).__name__} in {place}: {str(error)[:200]}"
        outcome["lost"] = f"{case.what}: {reason}" if case.what else reason
    finally:
        shutil.rmtree(case.place, ignore_errors=True)
    return {**outcome, "row": case.row, "num_faults": case.num_faults, "counts": case.counts}


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
def bounded(max_growth_bytes: int, max_seconds: float) -> Iterator[None]:
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
    if seconds > max_seconds:
        raise Lost(f"it took {seconds:.1f} s")
    if growth > max_growth_bytes and not IS_SANITIZED:
        raise Lost(f"it grew by {growth / 2**20:.0f} MB")
    if refused is not None:
        raise refused


def start_clocks() -> None:
    """A command counts its minutes from the start of its process."""
    for name in ("groundup.runtime", "groundup.cli.new", "groundup.cli.train"):
        if module := sys.modules.get(name):
            module.__dict__["STARTED"] = time.monotonic()


class Child:
    """A process, forked so that nothing is imported again: a command line, or a function."""

    def __init__(
        self,
        place: Path,
        work: Sequence[str] | Callable[[], object],
        before: Callable[[], object] = lambda: None,
    ) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self._error = place / f".stderr-{os.getpid()}-{time.monotonic_ns()}"
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(place, work, before)

    def signal(self, number: int) -> None:
        # It has not been waited for, so that the number is nobody else's.
        os.kill(self.pid, number)

    def wait(self, expected: Sequence[int] = (0, 1, 2), seconds: float = CHILD_SECONDS) -> int:
        """The status it ended with, below 0 the signal; `Lost` unless that is an expected one, and
        one line of a failure says why."""
        end, ended = time.monotonic() + seconds, (0, 0)
        while not ended[0]:
            ended = os.waitpid(self.pid, os.WNOHANG)
            if not ended[0] and time.monotonic() >= end:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise Lost(f"it had not ended after {seconds:.0f} s")
            time.sleep(0.0 if ended[0] else 0.003)
        status, error = os.waitstatus_to_exitcode(ended[1]), ""
        # Killed early, it may not have come so far.
        with contextlib.suppress(FileNotFoundError):
            error = self._error.read_text("utf-8", "replace").strip()
            self._error.unlink()
        last = error.splitlines()[-1:] or [""]
        if "Traceback (most recent call last)" in error:
            raise Lost(f"a traceback: {last[0]}")
        if status not in expected:
            raise Lost(f"it ended with status {status}: {error[-500:]}")
        return status

    def _run(
        self,
        place: Path,
        work: Sequence[str] | Callable[[], object],
        before: Callable[[], object],
    ) -> NoReturn:
        status = 1
        try:
            os.chdir(place)
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            os.dup2(0, 1)
            os.dup2(os.open(self._error, os.O_WRONLY | os.O_CREAT), 2)
            # The parent's streams remember what kind of file they were opened on.
            sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
            start_clocks()
            before()
            if callable(work):
                work()
                status = 0
            else:
                from groundup.cli.main import main

                status = main(work)
            sys.stdout.flush()
        except KeyboardInterrupt:
            # Before a command has begun; one that has says so itself.
            status = 130
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
