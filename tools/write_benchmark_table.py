"""Writes docs/benchmarks.md and the README's table from benchmarks/results/*.json.

`make bench` runs it; `tests/benchmarks` compares both with a fresh rendering.
A ratio is the quotient of the two medians shown.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from groundup.files import write_text_atomic

REPOSITORY = Path(__file__).resolve().parent.parent
README = REPOSITORY / "README.md"
PAGE = REPOSITORY / "docs" / "benchmarks.md"
RESULTS = REPOSITORY / "benchmarks" / "results"
BEGIN, END = "<!-- benchmarks:begin -->", "<!-- benchmarks:end -->"
OURS = "groundup"
# The order of the tables; other results follow.
ORDER = [
    "tokenizer_encoding",
    "tokenizer_training",
    "data_prepare",
    "train_step_cpu",
    "train_step_cuda",
    "generation_cpu",
    "generation_cuda",
    "serving_cpu",
    "serving_cuda",
]
# The README's rows: file, row, title. The rival is the fastest one with correct output.
HIGHLIGHTS = [
    ("tokenizer_encoding_x86_64", "array_web.cold", "Encode 96 MB of English, one x86 core"),
    ("tokenizer_encoding_aarch64", "array_web.cold", "The same on one Arm core"),
    ("tokenizer_training_x86_64", "web_32k.time", "Learn 32,000 tokens from 96 MB, two cores"),
    ("train_step_cpu_x86_64", "S1.speed", "Train 4 layers of 512, two CPU cores"),
    ("train_step_cuda_x86_64", "S2.speed", "Train 12 layers of 768, one H200"),
    ("generation_cuda_x86_64", "S1.batch_64", "Sample 64 sequences at once, one H200"),
]
Json = dict[str, Any]


def read_results(folder: Path = RESULTS) -> list[Json]:
    """Read all results; refuse those of `--quick` runs, which are meaningless."""
    results = []
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        # Sorted by file name, which ends in the kind of machine.
        result["file"] = path.stem
        result["machine"] = path.stem.removeprefix(result["benchmark"]).strip("_")
        results.append(result)
    quick = [result["benchmark"] for result in results if result["quick"]]
    if quick:
        sys.exit(f"error: {', '.join(quick)} in {folder} came from --quick; run it in full")
    names = [*ORDER, *sorted(result["benchmark"] for result in results)]
    return sorted(results, key=lambda result: names.index(result["benchmark"]))


def render_page(results: Iterable[Json]) -> str:
    """Render docs/benchmarks.md: a table for each result and how it was measured."""
    head = (
        "# Benchmarks\n\nWritten by `make bench` from "
        "[the results](../benchmarks/results): ours and every rival that is installed, on the same "
        "input\nin one run, ids or losses checked equal first. A ratio is the quotient of the two "
        "medians shown: above 1, ours\nis faster or smaller. MFU and bandwidth are fractions of "
        "what a device can do at best: of its operations, and of\nthe bytes that its memory reads, "
        "where a step of generation reads weights, keys and values once.\n"
    )
    return head + "".join(f"\n## {_render(result)}" for result in results)


def render_highlights(results: Iterable[Json]) -> str:
    """Render the README's table: one row per highlight, against the best rival."""
    rows = {
        (one["file"], row["name"]): row for one in results for row in one["rows"] if "name" in row
    }
    lines = ["| | groundup | best rival | ratio |", "| --- | --- | --- | --- |"]
    for file, name, title in HIGHLIGHTS:
        row = rows[file, name]
        ratio, rival = min((_ratio(row, tool), tool) for tool in _right_rivals(row))
        cells = [_value(row["tools"][tool], row["unit"]) for tool in (OURS, rival)]
        lines.append(f"| {title} | **{cells[0]}** | {cells[1]}, {rival} | {_short(ratio)}x |")
    return "\n".join([*lines, ""])


def put_section(readme: str, section: str) -> str:
    """Replace the README's section between its markers."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{section}\n{END}{after}"


def _render(result: Json) -> str:
    if "num_clients" in result["rows"][0]:
        return _render_serving(result)
    lines = ["| measured | groundup | others (ratio) |", "| --- | --- | --- |"]
    lines += [_line(row) for row in result["rows"] if row["headline"]]
    return "\n".join([_title(result), "", *lines, "", _conditions(result), ""])


def _render_serving(result: Json) -> str:
    """A table without rivals: throughput and latency by number of clients."""
    waits = {"first_token_seconds": "first token", "token_seconds": "token"}
    waits["whole_seconds"] = "answer"
    titles = ["clients", "groundup", *(f"{what}, ms at p50 / p90 / p99" for what in waits.values())]
    lines = [f"| {' | '.join([*titles, 'lost'])} |", f"| {' | '.join(['---'] * 6)} |"]
    for row in result["rows"]:
        shape = f"{row['shape']['num_layers']} layers of {row['shape']['d_model']}"
        cells = [
            f"{row['num_clients']}, {shape}",
            f"**{_quantity(row['tokens_per_second'], 'tokens/s')}**",
        ]
        for name in waits:
            cells.append(" / ".join(_short(1e3 * seconds) for seconds in row[name].values()))
        lines.append(f"| {' | '.join([*cells, str(row['num_lost'])])} |")
    given = f"{result['date']}, {_machine(result['hardware'])}; {result['conditions']}."
    return "\n".join([_title(result), "", *lines, "", given, ""])


def _title(result: Json) -> str:
    machine = result.get("machine")
    return f"{result['question']} ({machine})" if machine else str(result["question"])


def _line(row: Json) -> str:
    others = [_other(row, tool) for tool in row["tools"] if tool != OURS]
    title = row["title"] + ("" if row["valid"] else " (outputs differ)")
    return f"| {title} | **{_value(row['tools'][OURS], row['unit'])}** | {', '.join(others)} |"


def _other(row: Json, tool: str) -> str:
    cell = row["tools"][tool]
    if cell.get("agrees") is False:
        return f"{tool} gives another result"
    if "median" not in cell:
        return f"{tool} fails"
    note = f", {cell['note']}" if "note" in cell else ""
    return f"{tool} {_value(cell, row['unit'])} ({_short(_ratio(row, tool))}x{note})"


def _right_rivals(row: Json) -> list[str]:
    # Excludes variants of ours, such as one thread or float8.
    cells = {tool: cell for tool, cell in row["tools"].items() if not tool.startswith(OURS)}
    return [tool for tool, cell in cells.items() if cell.get("agrees") and "median" in cell]


def _ratio(row: Json, rival: str) -> float:
    """The factor by which ours is better: higher rate, less time or memory."""
    ours, theirs = (float(row["tools"][tool]["median"]) for tool in (OURS, rival))
    return ours / theirs if row["unit"].endswith("/s") else theirs / ours


def _value(cell: Json, unit: str) -> str:
    if "median" not in cell:
        return "failed"
    used = f", {cell['mfu']:.1%} MFU" if "mfu" in cell else ""
    used += f", {cell['bandwidth']:.1%} of bandwidth" if "bandwidth" in cell else ""
    return f"{_quantity(cell['median'], unit)}{used}"


def _conditions(result: Json) -> str:
    hardware = result["hardware"]
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    given = "real text" if result["text"] else result["conditions"]
    return (
        f"{result['date']}, {_machine(hardware)}, {hardware['system']}; {given}; "
        f"{_rounds(result)}; {versions}."
    )


def _machine(hardware: Json) -> str:
    memory = f"{hardware['memory_bytes'] / 2**30:.0f} GiB"
    processor = f"{hardware['cores']} cores of {hardware['cpu']}, {memory}"
    if "accelerator" not in hardware:
        return processor
    memory = f"{hardware['accelerator_memory_bytes'] / 2**30:.0f} GiB"
    return f"{hardware['accelerator']}, {memory}, CUDA {hardware['cuda']}, {processor}"


def _rounds(result: Json) -> str:
    if result["rounds"] == 1:
        return "one round"
    rivals = [row["tools"][tool] for row in result["rows"] for tool in row["tools"] if tool != OURS]
    has_more = any(len(cell.get("values", ())) > result["rounds"] for cell in rivals)
    more = " (more for close rivals)" if has_more else ""
    return f"medians of {result['rounds']} rounds{more}"


def _quantity(value: float, unit: str) -> str:
    if unit == "tokens/s" and value >= 1e6:
        return f"{value / 1e6:.2f}M {unit}"
    return f"{_short(value)} {unit}"


def _short(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


if __name__ == "__main__":
    results = read_results()
    write_text_atomic(PAGE, render_page(results))
    readme = README.read_text(encoding="utf-8")
    write_text_atomic(README, put_section(readme, render_highlights(results)))
