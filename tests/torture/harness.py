"""Faults that can be injected again: seeded cases in processes of their own, children under watch.

A kind of faults is a function of a `Case`, which injects what its random numbers say and raises
`Lost` if the promise of docs/guides/reliability.md does not hold. Each case is forked, so that it
may hang or crash, and so that torch is imported once for all of them.
"""

from __future__ import annotations

import contextlib
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

_ADDRESS_SPACE_BYTES = 3 << 30
_CHILD_SECONDS, _CASE_SECONDS = 240, 600
_FORK = multiprocessing.get_context("fork")


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


@dataclass(frozen=True)
class Kind:
    """A kind of faults: its cases, and what fraction of a run's time it gets."""

    name: str
    inject: Callable[[Case], None]
    fraction: float
    num_quick: int
    """Cases in a quick run."""


@dataclass
class Results:
    """What became of all faults."""

    rows: dict[str, Counter[str]] = field(default_factory=dict)
    """By the line of the table: how many were injected and lost, and what else was counted."""
    losses: dict[str, list[str]] = field(default_factory=dict)
    """By what was lost: the commands that show it again."""

    def add(self, case: Case, outcome: dict[str, Any]) -> None:
        name, reason = outcome.get("row") or case.kind, outcome.get("lost")
        counts = {"injected": outcome.get("num_faults", 1), "lost": int(reason is not None)}
        self.rows.setdefault(name, Counter()).update({**counts, **outcome.get("counts", {})})
        if reason is not None:
            again = f"python tests/torture --seed {case.seed} --case {case.kind}/{case.number}"
            self.losses.setdefault(f"{name}: {reason}", []).append(again)


def run_kind(
    kind: Kind,
    make_case: Callable[[int], Case],
    results: Results,
    num_jobs: int,
    num_cases: int,
    seconds: float,
    until_lost: bool = False,
) -> None:
    """Run cases until their number or the time is used up, several at a time."""
    deadline, number = time.monotonic() + seconds, 0
    running: dict[Connection, tuple[Any, Case]] = {}
    while True:
        is_over = number >= num_cases or time.monotonic() > deadline
        if not is_over and len(running) < num_jobs and not (until_lost and results.losses):
            reader, writer = _FORK.Pipe(duplex=False)
            case, number = make_case(number), number + 1
            process = _FORK.Process(target=_run_alone, args=(kind, case, writer))
            process.start()
            writer.close()
            running[reader] = process, case
            continue
        if not running:
            return
        for reader in [one for one in running if one in wait(list(running))]:
            process, case = running.pop(reader)
            outcome = None
            with contextlib.suppress(EOFError):
                outcome = reader.recv()
            process.join()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            status = process.exitcode
            how = "it never ended" if status == -signal.SIGALRM else f"its process: status {status}"
            results.add(case, outcome or {"lost": how})


def _run_alone(kind: Kind, case: Case, told: Connection) -> None:
    os.setsid()
    # Nothing here may take the machine with it.
    num_pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = num_pages * resource.getpagesize() + _ADDRESS_SPACE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    signal.alarm(_CASE_SECONDS)
    told.send(run_case(kind, case))
    os._exit(0)


def run_case(kind: Kind, case: Case) -> dict[str, Any]:
    """Inject, and say what became of it."""
    case.place.mkdir(parents=True, exist_ok=True)
    outcome: dict[str, Any] = {}
    try:
        kind.inject(case)
    except Lost as lost:
        outcome["lost"] = f"{case.what}: {lost}"
    except BaseException as error:
        # Nobody expected it: where in the package it was raised, and what it says.
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.line]
        last = ([frame for frame in frames if "/groundup/" in frame.filename] or frames)[-1]
        where = f"{type(error).__name__} in {Path(last.filename).name}, line {last.lineno}"
        outcome["lost"] = f"{case.what}: {where}: {str(error)[:200]}"
    finally:
        shutil.rmtree(case.place, ignore_errors=True)
    return {**outcome, "row": case.row, "num_faults": case.num_faults, "counts": case.counts}


@contextlib.contextmanager
def bounded(max_growth_bytes: int, max_seconds: float) -> Iterator[None]:
    """Work in this process that must stay within memory and time, refused or not."""
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        yield
    finally:
        growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
        if (seconds := time.process_time() - begin) > max_seconds:
            raise Lost(f"it took {seconds:.1f} s")
        if growth > max_growth_bytes:
            raise Lost(f"it grew by {growth >> 20} MB")


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

    def wait(self, expected: Sequence[int] = (0, 1, 2)) -> int:
        """The status it ended with, below 0 the signal; `Lost` unless that is an expected one."""
        end, ended = time.monotonic() + _CHILD_SECONDS, (0, 0)
        while not ended[0]:
            ended = os.waitpid(self.pid, os.WNOHANG)
            if not ended[0] and time.monotonic() >= end:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise Lost(f"it had not ended after {_CHILD_SECONDS} s")
            time.sleep(0.0 if ended[0] else 0.003)
        status, error = os.waitstatus_to_exitcode(ended[1]), ""
        # Killed early, it may not have come so far.
        with contextlib.suppress(FileNotFoundError):
            error = self._error.read_text("utf-8", "replace").strip()
            self._error.unlink()
        if "Traceback (most recent call last)" in error:
            raise Lost(f"a traceback: {error.splitlines()[-1]}")
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
            # A command counts its minutes from the start of its process.
            for name in ("groundup.runtime", "groundup.cli.new", "groundup.cli.train"):
                sys.modules[name].__dict__["STARTED"] = time.monotonic()
            before()
            from groundup.cli.main import main

            status = main(work) if not callable(work) else 0 * bool(work())
            sys.stdout.flush()
        except KeyboardInterrupt:
            # Before a command has begun; one that has says so itself.
            status = 130
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
