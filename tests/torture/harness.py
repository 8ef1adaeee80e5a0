"""Reproducible fault injection: seeded cases in separate processes, with supervised children.

A kind of faults is a function of a `Case`, which injects random faults and raises `Lost` if a
guarantee of docs/guides/reliability.md is violated. Each case is forked, so that it may hang (an
alarm ends it with status -14) or crash, and so that torch is imported only once.
"""

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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn

_ADDRESS_SPACE_BYTES = 3 << 30
_CHILD_SECONDS, _CASE_SECONDS = 240, 600

Work = Sequence[str] | Callable[[], object]
"""A command line of groundup, or a function."""
Inject = Callable[["Case"], None]


class Lost(Exception):
    """A guarantee was violated; the message says how."""


@dataclass
class Case:
    """One fault, or a few of the same kind, and everything that determines them."""

    kind: str
    seed: int
    number: int
    work: Path
    """The folder of the whole run."""
    aim: str = ""
    """Only workloads, artefacts or parsers whose name contains this."""
    row: str = ""
    """The row of the table that counts it."""
    what: str = ""
    """The fault, or where it is injected."""
    counts: Counter[str] = field(default_factory=lambda: Counter(injected=1))
    """Number of faults injected, and other counts that the table sums."""

    def __post_init__(self) -> None:
        self.random = random.Random(f"{self.seed}/{self.kind}/{self.number}")
        self.place = self.work / "cases" / f"{self.kind}-{self.number}"
        self.made = self.work / "made"
        """The artefacts that faults are injected into."""

    def turn(self, names: Iterable[str]) -> str:
        """Return the name for this case's number, among those that contain `aim`."""
        aimed = [name for name in names if self.aim in name]
        return aimed[self.number % len(aimed)]


def run_case(case: Case, inject: Inject) -> None:
    """Inject the fault, in a separate process, and write the result next to the case's folder."""
    os.setsid()
    # Limit memory, to protect the machine.
    num_pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = num_pages * resource.getpagesize() + _ADDRESS_SPACE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    signal.alarm(_CASE_SECONDS)
    case.place.mkdir(parents=True, exist_ok=True)
    lost = None
    try:
        inject(case)
    except Lost as error:
        lost = f"{case.what}: {error}"
    except BaseException as error:
        # Unexpected: report the place in the package that raised it, and the message.
        frames = traceback.extract_tb(error.__traceback__)
        last = ([one for one in frames if "/groundup/" in one.filename] or frames)[-1]
        where = f"{type(error).__name__} in {Path(last.filename).name}, line {last.lineno}"
        lost = f"{case.what}: {where}: {str(error)[:200]}"
    finally:
        shutil.rmtree(case.place, ignore_errors=True)
    case.place.with_suffix(".json").write_text(json.dumps([case.row, lost, case.counts]))


@dataclass
class Results:
    """The results of all faults."""

    until: str
    """Stop when a loss matches this regular expression, if any."""
    rows: dict[str, Counter[str]] = field(default_factory=dict)
    """By row of the table: number of faults injected and lost, and other counts."""
    losses: dict[str, list[str]] = field(default_factory=dict)
    """By loss: the commands that reproduce it."""

    def add(self, case: Case, status: int) -> None:
        row, lost, counts = case.kind, f"its process ended with status {status}", {"injected": 1}
        if status == 0:
            row, lost, counts = json.loads(case.place.with_suffix(".json").read_text())
        self.rows.setdefault(row, Counter()).update({**counts, "lost": int(lost is not None)})
        if lost is not None:
            aim = f" --aim '{case.aim}'" if case.aim else ""
            again = f"python tests/torture --seed {case.seed} --case {case.kind}/{case.number}{aim}"
            self.losses.setdefault(f"{row}: {lost}", []).append(again)


def run_cases(
    inject: Inject, cases: Iterable[Case], results: Results, num_jobs: int, seconds: float
) -> None:
    """Run cases in parallel, until there are no more, the time is over, or a loss matches
    `results.until`."""
    end, waiting, running = time.monotonic() + seconds, iter(cases), list[tuple[Child, Case]]()
    while True:
        is_found = results.until and any(re.search(results.until, one) for one in results.losses)
        is_over = is_found or time.monotonic() > end or len(running) >= num_jobs
        if not is_over and (case := next(waiting, None)) is not None:
            running.append((Child(case.work / "cases", partial(run_case, case, inject)), case))
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


class Child:
    """A child process, forked so that nothing is imported again."""

    def __init__(self, place: Path, work: Work, **environment: str) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self._error = tempfile.TemporaryFile()  # noqa: SIM115
        self.status: int | None = None
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            signal.alarm(_CHILD_SECONDS)
            os.environ.update(environment)
            self._run(place, work)

    def poll(self, options: int = os.WNOHANG) -> int | None:
        """Return the exit status, negative for a signal; None while it is running."""
        if self.status is None and (ended := os.waitpid(self.pid, options))[0]:
            self.status = os.waitstatus_to_exitcode(ended[1])
        return self.status

    def is_running(self) -> bool:
        """Whether it is running. Does not reap it, so that its process id is not reused."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def wait(self, expected: Sequence[int] = (0, 1, 2)) -> int:
        """Wait for the exit status; raises Lost if it is not expected."""
        status = self.poll(0) or 0
        error = os.pread(self._error.fileno(), 1 << 20, 0).decode("utf-8", "replace").strip()
        if "Traceback (most recent call last)" in error:
            raise Lost(f"a traceback: {error.splitlines()[-1]}")
        if status not in expected:
            raise Lost(f"it ended with status {status}: {error[-500:]}")
        return status

    def _run(self, place: Path, work: Work) -> NoReturn:
        status = 1
        try:
            os.chdir(place)
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            os.dup2(0, 1)
            os.dup2(self._error.fileno(), 2)
            # The parent's streams keep properties of the files they were opened on.
            sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
            # A command counts its minutes from the start of its process.
            from groundup.cli import main, new, train

            vars(train)["STARTED"] = vars(new)["STARTED"] = time.monotonic()
            ended = work() if callable(work) else main.main(work)
            status = ended if isinstance(ended, int) else 0
            sys.stdout.flush()
        except KeyboardInterrupt:
            # Interrupted before the command started; commands handle it themselves.
            status = 130
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
