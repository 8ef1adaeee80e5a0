"""Measures tools against one another: every figure from a fresh process, tools taking turns.

A benchmark is a list of tasks and a function `work(job)` that does one task with one tool. Here are
the rounds and the result file; ratios are made in `rows`, the clock is `machine`, the texts are
`corpora`, the printing is `report`.
"""

from __future__ import annotations

import argparse
import datetime
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from corpora import CACHE, REPOSITORY, Corpora
from machine import (
    describe_hardware,
    describe_versions,
    find_device,
    is_installed,
    result_name,
    use_cores,
)
from rows import OURS, Json, Task, Verdict, is_close, make_row

RESULTS = REPOSITORY / "benchmarks" / "results"


@dataclass(frozen=True)
class Benchmark:
    """A file of this folder: its tasks, how to do one, and how to compare two outputs."""

    name: str
    question: str
    tasks: Callable[[Corpora], Iterable[Task]]
    work: Callable[[Json], Json]
    compare: Callable[[Path, Path], Verdict]
    # What is said of the conditions where the input is no text.
    conditions: str | None = None
    rounds: int = 3
    close_rounds: int = 4
    # The same for a device, where there is more than the CPU to run on.
    on_device: Callable[[str], Benchmark] | None = None


def main(benchmark: Benchmark, script: str) -> int:
    """Run the benchmark, or, in a process it started itself, one job of it."""
    arguments = _parse(benchmark)
    if arguments.job is not None:
        return _serve(benchmark, arguments.job)
    from report import print_task

    device = "cpu"
    if benchmark.on_device is not None:
        device = find_device(arguments.device)
        benchmark = benchmark.on_device(device)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Tables appear as they come when the output goes to a file.
        sys.stdout.reconfigure(line_buffering=True)

    rounds, close_rounds = _rounds(benchmark, arguments)
    out = arguments.out or (CACHE / "quick" if arguments.quick else RESULTS)
    path = out / result_name(benchmark.name)
    old = json.loads(path.read_text()) if arguments.only and path.exists() else None
    result: Json = {
        "benchmark": benchmark.name,
        "question": benchmark.question,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "quick": arguments.quick,
        "rounds": rounds,
        "close_rounds": close_rounds,
        "hardware": describe_hardware(device),
        "text": None,
        "conditions": benchmark.conditions,
        "versions": {},
        "skipped": {},
        "rows": [],
    }
    with tempfile.TemporaryDirectory(prefix="groundup-benchmark-") as folder:
        corpora = Corpora(Path(folder), quick=arguments.quick)
        result["text"] = corpora.source if benchmark.conditions is None else None
        runner = _Runner(benchmark, script, Path(folder), rounds, close_rounds, arguments.timeout)
        for task in benchmark.tasks(corpora):
            if arguments.only and not any(part in task.name for part in arguments.only):
                continue
            rivals = _present(task.rivals, arguments.tools, result["skipped"])
            rows = runner.run(task, rivals)
            print_task(task, rows)
            result["rows"] += rows
            result["versions"] |= describe_versions(rows[0]["tools"])
            out.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(_merged(old, result), indent=1) + "\n")
    for tool, reason in result["skipped"].items():
        print(f"skipped {tool}: {reason}")
    print(f"{path}")
    return 0


class _Runner:
    """Starts the processes of a task in turns and makes rows of what they say."""

    def __init__(
        self,
        benchmark: Benchmark,
        script: str,
        folder: Path,
        rounds: int,
        close_rounds: int,
        timeout: float,
    ) -> None:
        self._benchmark = benchmark
        self._script = script
        self._folder = folder
        self._rounds = rounds
        self._close_rounds = close_rounds
        self._timeout = timeout

    def run(self, task: Task, rivals: Sequence[str]) -> list[Json]:
        """The rows of one task, one for each of its measures."""
        results: dict[str, list[Json]] = {tool: [] for tool in (OURS, *rivals)}
        # For each rival and round: its result and that of ours which ran right beside it.
        pairs: dict[str, list[tuple[Json, Json]]] = {tool: [] for tool in rivals}
        problems: dict[str, str] = {}
        verdicts: dict[str, Verdict] = {}
        for number in range(self._rounds + self._close_rounds):
            alive = [tool for tool in rivals if tool not in problems]
            if number >= self._rounds:
                alive = [tool for tool in alive if is_close(pairs[tool], task.measures)]
                if not alive or not task.looks_twice:
                    break
            groups = [[OURS, *alive]] if task.is_steady else _groups(alive, number)
            for group in groups:
                done = {tool: self._process(task, tool, first=number == 0) for tool in group}
                for tool, outcome in done.items():
                    if "error" in outcome:
                        problems[tool] = outcome["error"]
                    else:
                        results[tool].append(outcome)
                ours = done[OURS]
                for tool in group:
                    if tool != OURS and "error" not in ours and "error" not in done[tool]:
                        pairs[tool].append((ours, done[tool]))
            if OURS in problems:
                break
            if number == 0:
                verdicts = self._compare(task, [tool for tool in alive if tool not in problems])
        return [
            make_row(task, measure, results, pairs, verdicts, problems) for measure in task.measures
        ]

    def _process(self, task: Task, tool: str, *, first: bool) -> Json:
        job = {**task.job, "tool": tool, "cores": task.cores}
        if tool in task.lighter:
            job |= task.lighter[tool][0]
        stem = f"{task.name}.{tool}".replace(" ", "_")
        answer = self._folder / f"{stem}.json"
        answer.unlink(missing_ok=True)
        job |= {"answer": str(answer), "output": str(self._folder / stem) if first else None}
        question = self._folder / f"{stem}.job.json"
        question.write_text(json.dumps(job))
        threads = str(task.cores)
        environment = {
            **os.environ,
            "RAYON_NUM_THREADS": threads,
            "OMP_NUM_THREADS": threads,
            "TOKENIZERS_PARALLELISM": "true" if task.cores > 1 else "false",
            "PYTHONWARNINGS": "ignore",
        }
        command = [sys.executable, self._script, "--job", str(question)]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=self._timeout
            )
        except subprocess.TimeoutExpired:
            return {"error": f"not done after {self._timeout:.0f} s"}
        if done.returncode != 0 or not answer.exists():
            return {"error": _reason(done.stderr) or f"exit status {done.returncode}"}
        return dict(json.loads(answer.read_text()))

    def _compare(self, task: Task, rivals: Iterable[str]) -> dict[str, Verdict]:
        ours = self._folder / f"{task.name}.{OURS}".replace(" ", "_")
        verdicts = {}
        for tool in rivals:
            theirs = self._folder / f"{task.name}.{tool}".replace(" ", "_")
            if not ours.exists() or not theirs.exists():
                continue
            verdicts[tool] = self._benchmark.compare(ours, theirs)
            if not verdicts[tool].agrees:
                print(f"{task.name}: {tool} disagrees with ours: {verdicts[tool].words}")
        return verdicts


def _groups(rivals: Sequence[str], number: int) -> Iterator[list[str]]:
    """The order of one round: ours between two rivals each time, every other round backwards."""
    if not rivals:
        yield [OURS]
    for first in range(0, len(rivals), 2):
        group = [rivals[first], OURS, *rivals[first + 1 : first + 2]]
        yield group[::-1] if number % 2 else group


def _present(rivals: Sequence[str], wanted: list[str] | None, skipped: Json) -> list[str]:
    """The rivals that can run here; why the others do not is noted."""
    present = []
    for tool in rivals:
        if tool.startswith(OURS):
            present.append(tool)
        elif wanted is not None and not _is_wanted(tool, rivals, wanted):
            skipped[tool] = "not asked for"
        elif not is_installed(tool):
            skipped[tool] = "not installed"
        else:
            present.append(tool)
    return present


def _is_wanted(tool: str, rivals: Sequence[str], wanted: list[str]) -> bool:
    """By its name, or by the part before the comma where no rival has just that for a name."""
    names = {name.replace(" ", "") for name in wanted}
    base = tool.partition(",")[0]
    return tool.replace(" ", "") in names or (base in names and base not in rivals)


def _merged(old: Json | None, result: Json) -> Json:
    """The rows measured now in the places of the old ones, where those are kept (--only)."""
    if old is None:
        return result
    new = {row["name"]: row for row in result["rows"]}
    rows = [new.pop(row["name"], row) for row in old["rows"]]
    return {
        **result,
        "rows": rows + list(new.values()),
        "versions": old["versions"] | result["versions"],
    }


def _serve(benchmark: Benchmark, path: Path) -> int:
    job = json.loads(path.read_text())
    use_cores(job["cores"])
    answer = benchmark.work(job)
    Path(job["answer"]).write_text(json.dumps(answer))
    return 0


def _rounds(benchmark: Benchmark, arguments: argparse.Namespace) -> tuple[int, int]:
    if arguments.quick:
        return 1, 0
    asked = arguments.rounds, arguments.close_rounds
    usual = benchmark.rounds, benchmark.close_rounds
    rounds, close_rounds = (
        usual[n] if number is None else number for n, number in enumerate(asked)
    )
    return rounds, close_rounds


def _parse(benchmark: Benchmark) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=benchmark.question)
    if benchmark.on_device is not None:
        parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: a rehearsal")
    parser.add_argument("--rounds", type=int, help="how often each tool gets its turn")
    parser.add_argument("--close-rounds", type=int, help="more of them for close rivals")
    parser.add_argument("--only", nargs="+", help="only tasks whose names contain one of these")
    parser.add_argument("--tools", nargs="+", help="only these rivals")
    parser.add_argument("--timeout", type=float, default=300, help="seconds a process may take")
    parser.add_argument(
        "--out",
        type=Path,
        help="the folder of the result: benchmarks/results, or with --quick build",
    )
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def _reason(stderr: str) -> str:
    """What went wrong: the first line behind the last traceback, or the last of all."""
    _, traceback, rest = stderr.rpartition("Traceback (most recent call last):\n")
    lines = rest.strip("\n").splitlines()
    after = [line for line in lines if not line.startswith(" ")] if traceback else lines[-1:]
    return after[0][:200] if after else ""
