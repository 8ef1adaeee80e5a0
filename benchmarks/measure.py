"""Compare tools: every number comes from a fresh process, and tools alternate.

A benchmark is a list of tasks and a function `work(job)` that does one task with one tool. This
module runs the rounds and writes the result file; `machine` has the clocks, `corpora` the texts.
"""

from __future__ import annotations

import argparse
import datetime
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from corpora import CACHE, REPOSITORY, Corpora
from machine import (
    describe_hardware,
    describe_versions,
    find_device,
    is_installed,
    result_name,
    use_cores,
)

OURS = "groundup"
RESULTS = REPOSITORY / "benchmarks" / "results"
# The size that a job reports for each rate, and the size of one unit.
_RATES = {"MB/s": ("num_bytes", 1e6), "tokens/s": ("num_tokens", 1)}

Json = dict[str, Any]


@dataclass(frozen=True)
class Measure:
    """A number that a job reports under this name; rates are computed from its seconds."""

    name: str
    title: str
    unit: str = "MB/s"
    headline: bool = True


@dataclass(frozen=True)
class Task:
    """One measurement with several tools, each on `cores` cores."""

    name: str
    title: str
    job: Json
    rivals: tuple[str, ...]
    measures: tuple[Measure, ...]
    cores: int = 1
    # A smaller job for slow tools: changes to the job, and a note about them.
    lighter: dict[str, tuple[Json, str]] = field(default_factory=dict)


class Verdict(NamedTuple):
    """Whether a rival's output equals ours, and a note for the table."""

    agrees: bool
    words: str


@dataclass(frozen=True)
class Benchmark:
    """A benchmark module: its tasks, how to run one, and how to compare two outputs."""

    name: str
    question: str
    tasks: Callable[[Corpora], Iterable[Task]]
    work: Callable[[Json], Json]
    compare: Callable[[Path, Path], Verdict]
    # Shown in place of the text if the input is not text.
    conditions: str | None = None
    rounds: int = 3
    # The same benchmark on another device, if it supports more than the CPU.
    on_device: Callable[[str], Benchmark] | None = None


def main(benchmark: Benchmark, script: str) -> int:
    """Run the benchmark, or one of its jobs in a process that it started."""
    arguments = _parse(benchmark)
    if arguments.job is not None:
        job = json.loads(arguments.job.read_text())
        use_cores(job["cores"])
        Path(job["answer"]).write_text(json.dumps(benchmark.work(job)))
        return 0
    device = "cpu"
    if benchmark.on_device is not None:
        device = find_device(arguments.device)
        benchmark = benchmark.on_device(device)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    rounds = 1 if arguments.quick else arguments.rounds or benchmark.rounds
    out = arguments.out or (CACHE / "quick" if arguments.quick else RESULTS)
    path = out / result_name(benchmark.name)
    old = json.loads(path.read_text()) if arguments.only and path.exists() else None
    result: Json = {
        "benchmark": benchmark.name,
        "question": benchmark.question,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "quick": arguments.quick,
        "rounds": rounds,
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
        for task in benchmark.tasks(corpora):
            if arguments.only and not any(part in task.name for part in arguments.only):
                continue
            rivals = _present(task.rivals, arguments.tools, result["skipped"])
            rows = run_task(benchmark, task, rivals, script, Path(folder), rounds)
            print_task(task, rows)
            result["rows"] += rows
            result["versions"] |= describe_versions(rows[0]["tools"])
            out.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(_merged(old, result), indent=1) + "\n")
    for tool, reason in result["skipped"].items():
        print(f"skipped {tool}: {reason}")
    print(path)
    return 0


def run_task(
    benchmark: Benchmark,
    task: Task,
    rivals: Sequence[str],
    script: str,
    folder: Path,
    rounds: int,
) -> list[Json]:
    """The rows of one task, one per measure; the order of the tools alternates between rounds."""
    tools = [OURS, *rivals]
    results: dict[str, list[Json]] = {tool: [] for tool in tools}
    problems: dict[str, str] = {}
    verdicts: dict[str, Verdict] = {}
    for number in range(rounds):
        for tool in tools if number % 2 == 0 else tools[::-1]:
            if tool in problems:
                continue
            outcome = _process(task, tool, script, folder, writes_output=number == 0)
            if "error" in outcome:
                problems[tool] = outcome["error"]
            else:
                results[tool].append(outcome)
        if OURS in problems:
            break
        if number == 0:
            ours = folder / _stem(task, OURS)
            for tool in set(rivals) - set(problems):
                theirs = folder / _stem(task, tool)
                if ours.exists() and theirs.exists():
                    verdicts[tool] = benchmark.compare(ours, theirs)
    return [make_row(task, measure, results, verdicts, problems) for measure in task.measures]


def _stem(task: Task, tool: str) -> str:
    return f"{task.name}.{tool}".replace(" ", "_")


def _process(task: Task, tool: str, script: str, folder: Path, *, writes_output: bool) -> Json:
    """Run one job in a process and return its report."""
    job = {**task.job, "tool": tool, "cores": task.cores}
    if tool in task.lighter:
        job |= task.lighter[tool][0]
    stem = _stem(task, tool)
    answer, question = folder / f"{stem}.json", folder / f"{stem}.job.json"
    answer.unlink(missing_ok=True)
    job |= {"answer": str(answer), "output": str(folder / stem) if writes_output else None}
    question.write_text(json.dumps(job))
    environment = {
        **os.environ,
        "RAYON_NUM_THREADS": str(task.cores),
        "OMP_NUM_THREADS": str(task.cores),
        "TOKENIZERS_PARALLELISM": "true" if task.cores > 1 else "false",
        "PYTHONWARNINGS": "ignore",
    }
    command = [sys.executable, script, "--job", str(question)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        return {"error": "not done after 300 s"}
    if done.returncode != 0 or not answer.exists():
        lines = done.stderr.strip().splitlines()
        return {"error": lines[-1][:200] if lines else f"exit status {done.returncode}"}
    return dict(json.loads(answer.read_text()))


def make_row(
    task: Task,
    measure: Measure,
    results: dict[str, list[Json]],
    verdicts: dict[str, Verdict],
    problems: dict[str, str],
) -> Json:
    """One measure of a task for all tools: medians, spreads, and whether outputs equal ours."""
    tools: Json = {}
    for tool, outcomes in results.items():
        cell: Json = {"note": task.lighter[tool][1]} if tool in task.lighter else {}
        if tool in problems:
            cell["error"] = problems[tool]
        values = [value for one in outcomes if (value := _value(one, measure)) is not None]
        if values:
            cell |= {
                "median": statistics.median(values),
                "low": min(values),
                "high": max(values),
                "values": values,
                "peak_bytes": _median(one.get("peak_bytes") for one in outcomes),
                "extra": outcomes[0].get("extra", {}),
            }
        if measure.unit == "tokens/s" and values:
            cell |= _fractions(cell, measure.name)
        if tool in verdicts:
            cell |= {"agrees": verdicts[tool].agrees, "agreement": verdicts[tool].words}
        tools[tool] = cell
    return {
        "name": f"{task.name}.{measure.name}",
        "title": f"{task.title}{', ' if measure.title else ''}{measure.title}",
        "unit": measure.unit,
        "cores": task.cores,
        "headline": measure.headline,
        "valid": all(verdict.agrees for verdict in verdicts.values()) and OURS not in problems,
        "tools": tools,
    }


def _value(outcome: Json, measure: Measure) -> float | None:
    seconds = outcome["seconds"].get(measure.name)
    if measure.unit in _RATES:
        amount, one = _RATES[measure.unit]
        return float(outcome[amount] / seconds / one) if seconds else None
    if measure.unit == "MB":
        taken = outcome["memory_bytes"].get(measure.name)
        return None if taken is None else float(taken / 1e6)
    return None if seconds is None else float(seconds)


def _fractions(cell: Json, name: str) -> Json:
    """MFU and the fraction of the memory bandwidth used, if the device's peak is known."""
    extra = cell["extra"]
    found = {}
    if best := extra.get("peak_flops_per_second"):
        found["mfu"] = cell["median"] * extra["flops_per_token"] / best
    if best := extra.get("peak_bytes_per_second"):
        found["bandwidth"] = cell["median"] * extra["bytes_per_token"][name] / best
    return found


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def print_task(task: Task, rows: list[Json]) -> None:
    """One line per tool and measure."""
    print(f"\n{task.title} ({task.cores} core{'s' if task.cores > 1 else ''})")
    for row, measure in zip(rows, task.measures, strict=True):
        for tool, cell in row["tools"].items():
            shown = cell.get("error", "-")
            if "median" in cell:
                shown = f"{short(cell['median'])} {row['unit']}"
                shown += f" ({short(cell['low'])}-{short(cell['high'])})"
            words = ["" if cell.get("agrees", True) else "DISAGREES", cell.get("agreement", "")]
            print(f"  {measure.title or measure.name}: {tool} {shown} {' '.join(words)}".rstrip())


def short(value: float) -> str:
    """Three significant digits."""
    if value >= 1e6:
        return f"{value / 1e6:.2f}M"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def _present(rivals: Sequence[str], wanted: list[str] | None, skipped: Json) -> list[str]:
    """The rivals that can run here; prints why the others cannot."""
    present = []
    for tool in rivals:
        # By full name, or by the part before the comma if no rival has that full name.
        base = tool.partition(",")[0]
        names = {tool.replace(" ", ""), *({base} - set(rivals))}
        if tool.startswith(OURS):
            present.append(tool)
        elif wanted is not None and not names & {name.replace(" ", "") for name in wanted}:
            skipped[tool] = "not asked for"
        elif not is_installed(tool):
            skipped[tool] = "not installed"
        else:
            present.append(tool)
    return present


def _merged(old: Json | None, result: Json) -> Json:
    """Replace the old rows of the same name by the new ones (--only keeps the others)."""
    if old is None:
        return result
    new = {row["name"]: row for row in result["rows"]}
    rows = [new.pop(row["name"], row) for row in old["rows"]]
    versions = old["versions"] | result["versions"]
    return {**result, "rows": rows + list(new.values()), "versions": versions}


def _parse(benchmark: Benchmark) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=benchmark.question)
    if benchmark.on_device is not None:
        parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round")
    parser.add_argument("--rounds", type=int, help="how often each tool gets its turn")
    parser.add_argument("--only", nargs="+", help="only tasks whose names contain one of these")
    parser.add_argument("--tools", nargs="+", help="only these rivals")
    parser.add_argument("--out", type=Path, help="the folder of the result")
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()
