"""Faults that can be injected again: seeded cases in processes of their own, children under watch.

A kind of faults is a function of a `Case`, which injects what its random numbers say and raises
`Lost` if the promise of docs/guides/reliability.md does not hold. Each case is forked, so that it
may hang or crash, and so that torch is imported once for all of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

_ADDRESS_SPACE_BYTES = 3 << 30
_CHILD_SECONDS, _CASE_SECONDS = 240, 600

Work = Sequence[str] | Callable[[], object]
"""A command line of groundup, or a function."""


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
    aim: str = ""
    """What the names of workloads, artefacts or parsers must have in them."""
    row: str = ""
    """The line of the table that it counts for."""
    what: str = ""
    """What exactly is done there."""
    counts: Counter[str] = field(default_factory=lambda: Counter(injected=1))
    """Faults that were injected, and what else the table has sums of."""

    def __post_init__(self) -> None:
        self.random = random.Random(f"{self.seed}/{self.kind}/{self.number}")
        self.place = self.work / "cases" / f"{self.kind}-{self.number}"
        self.made = self.work / "made"
        """The artefacts that faults are injected into."""

    def turn(self, names: Iterable[str]) -> str:
        """The one whose turn it is, of those aimed at."""
        aimed = [name for name in names if self.aim in name]
        return aimed[self.number % len(aimed)]


@dataclass(frozen=True)
class Kind:
    """A kind of faults: its cases, and what fraction of a run's time it gets."""

    name: str
    inject: Callable[[Case], None]
    fraction: float
    num_quick: int
    """Cases in a quick run."""

    def run(self, case: Case) -> None:
        """Inject, and note what became of it beside the case's folder."""
        case.place.mkdir(parents=True, exist_ok=True)
        lost = None
        try:
            self.inject(case)
        except Lost as error:
            lost = f"{case.what}: {error}"
        except BaseException as error:
            # Nobody expected it: where in the package it was raised, and what it says.
            frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.line]
            last = ([frame for frame in frames if "/groundup/" in frame.filename] or frames)[-1]
            where = f"{type(error).__name__} in {Path(last.filename).name}, line {last.lineno}"
            lost = f"{case.what}: {where}: {str(error)[:200]}"
        finally:
            shutil.rmtree(case.place, ignore_errors=True)
        case.place.with_suffix(".json").write_text(json.dumps([case.row, lost, case.counts]))


@dataclass
class Results:
    """What became of all faults."""

    rows: dict[str, Counter[str]] = field(default_factory=dict)
    """By the line of the table: how many were injected and lost, and what else was counted."""
    losses: dict[str, list[str]] = field(default_factory=dict)
    """By what was lost: the commands that show it again."""

    def add(self, case: Case, status: int) -> None:
        row, lost, counts = case.kind, f"its process: {describe(status)}", {"injected": 1}
        if status == 0:
            row, lost, counts = json.loads(case.place.with_suffix(".json").read_text())
        self.rows.setdefault(row, Counter()).update({**counts, "lost": int(lost is not None)})
        if lost is not None:
            aim = f" --aim '{case.aim}'" if case.aim else ""
            again = f"python tests/torture --seed {case.seed} --case {case.kind}/{case.number}{aim}"
            self.losses.setdefault(f"{row}: {lost}", []).append(again)


def run_cases(
    kind: Kind, cases: Iterable[Case], results: Results, num_jobs: int, seconds: float, until: str
) -> None:
    """Run cases until there are no more, the time is used up, or a loss is like `until`; several
    at a time."""
    end, waiting, running = time.monotonic() + seconds, iter(cases), list[tuple[Child, Case]]()
    while True:
        is_found = until and any(re.search(until, loss) for loss in results.losses)
        is_over = is_found or time.monotonic() > end or len(running) >= num_jobs
        if not is_over and (case := next(waiting, None)) is not None:
            work = lambda case=case: kind.run(case)  # noqa: E731
            running.append((Child(case.work / "cases", work, _isolate), case))
            continue
        if not running:
            return
        for child, case in [*running]:
            if is_found or child.poll() is not None:
                running.remove((child, case))
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                if not is_found:
                    results.add(case, child.status or 0)
        time.sleep(0.003)


def _isolate() -> None:
    os.setsid()
    # Nothing here may take the machine with it.
    num_pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = num_pages * resource.getpagesize() + _ADDRESS_SPACE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    signal.alarm(_CASE_SECONDS)


def describe(status: int) -> str:
    return "it never ended" if status == -signal.SIGALRM else f"it ended with status {status}"


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
    """A process, forked so that nothing is imported again."""

    def __init__(
        self, place: Path, work: Work, before: Callable[[], object] = lambda: None
    ) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self._error = tempfile.TemporaryFile()  # noqa: SIM115
        self.status: int | None = None
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            signal.alarm(_CHILD_SECONDS)
            self._run(place, work, before)

    def poll(self, options: int = os.WNOHANG) -> int | None:
        """The status it ended with, below 0 the signal; None while it runs."""
        if self.status is None and (ended := os.waitpid(self.pid, options))[0]:
            self.status = os.waitstatus_to_exitcode(ended[1])
        return self.status

    def wait(self, expected: Sequence[int] = (0, 1, 2)) -> int:
        """The status it ended with; `Lost` unless that is an expected one."""
        status = self.poll(0) or 0
        with self._error as file:
            file.seek(0)
            error = file.read().decode("utf-8", "replace").strip()
        if "Traceback (most recent call last)" in error:
            raise Lost(f"a traceback: {error.splitlines()[-1]}")
        if status not in expected:
            raise Lost(f"{describe(status)}: {error[-500:]}")
        return status

    def _run(self, place: Path, work: Work, before: Callable[[], object]) -> NoReturn:
        status = 1
        try:
            os.chdir(place)
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            os.dup2(0, 1)
            os.dup2(self._error.fileno(), 2)
            # The parent's streams remember what kind of file they were opened on.
            sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
            # A command counts its minutes from the start of its process.
            for name in ("groundup.cli.train", "groundup.cli.new"):
                sys.modules.get(name, sys).__dict__["STARTED"] = time.monotonic()
            before()
            from groundup.cli.main import main

            ended = work() if callable(work) else main(work)
            status = ended if isinstance(ended, int) else 0
            sys.stdout.flush()
        except KeyboardInterrupt:
            # Before a command has begun; one that has says so itself.
            status = 130
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
