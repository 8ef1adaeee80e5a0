"""Writes the README's table of measurements from benchmarks/results/*.json.

`make bench` runs it; `tests/test_benchmark_table.py` compares the README with a fresh rendering.
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
RESULTS = REPOSITORY / "benchmarks" / "results"
BEGIN, END = "<!-- benchmarks:begin -->", "<!-- benchmarks:end -->"
OURS = "groundup"
# The order of the tables; results with other names come after.
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
# Stands in the targets of a row for whichever rival did best.
BEST_RIVAL = "the best rival"

Json = dict[str, Any]


def read_results(folder: Path = RESULTS) -> list[Json]:
    """All results, rehearsals (`--quick`) refused: their figures mean nothing."""
    results = []
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        # The file's name ends in the kind of machine: two kinds stand below each other.
        result["machine"] = path.stem.removeprefix(result["benchmark"]).strip("_")
        results.append(result)
    quick = [result["benchmark"] for result in results if result["quick"]]
    if quick:
        sys.exit(f"error: {', '.join(quick)} in {folder} came from --quick; run it in full")
    names = [*ORDER, *sorted(result["benchmark"] for result in results)]
    return sorted(results, key=lambda result: names.index(result["benchmark"]))


def render_section(results: Iterable[Json]) -> str:
    """What stands between the markers: a table for each result and how it was measured."""
    return "".join(f"\n{_render(result)}" for result in results)


def put_section(readme: str, section: str) -> str:
    """The README with another section between its markers."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{section}{END}{after}"


def _render(result: Json) -> str:
    if "num_clients" in result["rows"][0]:
        return _render_serving(result)
    lines = [
        "| measured | groundup | others (ours is so many times better) | target |",
        "| --- | --- | --- | --- |",
    ]
    lines += [_line(row) for row in result["rows"] if row["headline"]]
    return "\n".join([_title(result), "", *lines, "", _conditions(result), ""])


def _render_serving(result: Json) -> str:
    """A server has no rivals here, but clients: how much they get, and how long they wait."""
    waits = {
        "first_token_seconds": "first token",
        "token_seconds": "token",
        "whole_seconds": "answer",
    }
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
    ours = row["tools"][OURS]
    others = [
        _other(tool, cell, row["unit"]) for tool, cell in row["tools"].items() if tool != OURS
    ]
    title = row["title"] + ("" if row["valid"] else " (outputs differ)")
    shown = f"**{_figure(ours, row['unit'])}**"
    return f"| {title} | {shown} | {', '.join(others)} | {_target(row)} |"


def _other(tool: str, cell: Json, unit: str) -> str:
    if cell.get("agrees") is False:
        return f"{tool} gives another result"
    if "median" not in cell:
        return f"{tool} fails"
    remarks = [f"{_short(cell['ratio'])}x"] if "ratio" in cell else []
    remarks += [cell["note"]] if "note" in cell else []
    return f"{tool} {_figure(cell, unit)}" + (f" ({', '.join(remarks)})" if remarks else "")


def _target(row: Json) -> str:
    """Each target with a word on whether it was met."""
    parts = []
    for rival, least in row["targets"].items():
        ratio = _best_ratio(row) if rival == BEST_RIVAL else _ratio(row, rival)
        met = "not measured" if ratio is None else "met" if ratio >= least else "missed"
        parts.append(f"{least:g}x {rival}: {met}")
    if row["limit"] is not None:
        value = row["tools"][OURS].get("median")
        met = "not measured" if value is None else "met" if value <= row["limit"] else "missed"
        parts.append(f"{row['limit']:g} {row['unit']} at most: {met}")
    if row.get("least") is not None:
        value = row["tools"][OURS].get("median")
        met = "not measured" if value is None else "met" if value >= row["least"] else "missed"
        parts.append(f"{_quantity(row['least'], row['unit'])} at least: {met}")
    return "; ".join(parts)


def _ratio(row: Json, rival: str) -> float | None:
    ratio: float | None = row["tools"].get(rival, {}).get("ratio")
    return ratio


def _best_ratio(row: Json) -> float | None:
    """Against the rival that came nearest, of those whose output is right."""
    rivals = [tool for tool, cell in row["tools"].items() if cell.get("agrees") is not False]
    ratios = [ratio for tool in rivals if (ratio := _ratio(row, tool)) is not None]
    return min(ratios, default=None)


def _figure(cell: Json, unit: str) -> str:
    if "median" not in cell:
        return "failed"
    share = f", {cell['mfu']:.1%} MFU" if "mfu" in cell else ""
    return f"{_quantity(cell['median'], unit)}{share}"


def _conditions(result: Json) -> str:
    hardware = result["hardware"]
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    given = f"text from {result['text']}" if result["text"] else result["conditions"]
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
    return f"medians of {result['rounds']} rounds{more}, ratios between neighbouring runs"


def _quantity(value: float, unit: str) -> str:
    if unit == "tokens/s" and value >= 1e6:
        return f"{value / 1e6:.2f}M {unit}"
    return f"{_short(value)} {unit}"


def _short(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


if __name__ == "__main__":
    section = render_section(read_results())
    write_text_atomic(README, put_section(README.read_text(encoding="utf-8"), section))
