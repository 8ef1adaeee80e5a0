"""Shows what was measured: one table a task, one line a tool. Plain text, on any machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rows import Task

Json = dict[str, Any]


def print_task(task: Task, rows: list[Json]) -> None:
    """The rows of one task side by side; a ratio above 1 says that ours is better."""
    cores = "one core" if task.cores == 1 else f"{task.cores} cores"
    head = ["tool"]
    for measure in task.measures:
        head += [f"{measure.title or measure.name}, {measure.unit}", "ours is (by cpu)"]
    lines = [[*head, "peak MB", "output"]]
    for tool in rows[0]["tools"]:
        cells = [row["tools"][tool] for row in rows]
        line = [tool]
        for cell in cells:
            line += [_spread(cell), _ratios(cell)]
        peak = cells[0].get("peak_bytes")
        words = [cells[0].get("error"), cells[0].get("agreement"), cells[0].get("note")]
        line.append("" if peak is None else f"{peak / 1e6:.0f}")
        words.insert(0, "DISAGREES" if cells[0].get("agrees") is False else None)
        line.append(", ".join(word for word in words if word))
        lines.append(line)
    print(f"\n{task.title} ({cores})")
    _print_columns(lines)


def short(value: float) -> str:
    """Three digits that matter."""
    if value >= 1e6:
        return f"{value / 1e6:.2f}M"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def _ratios(cell: Json) -> str:
    if "ratio" not in cell:
        return ""
    by_cpu = f" ({cell['cpu_ratio']:.2f}x)" if cell["cpu_ratio"] else ""
    return f"{cell['ratio']:.2f}x{by_cpu}"


def _spread(cell: Json) -> str:
    if "median" not in cell:
        return "-"
    used = f", {cell['mfu']:.1%} MFU" if "mfu" in cell else ""
    used += f", {cell['bandwidth']:.1%} of bandwidth" if "bandwidth" in cell else ""
    if len(cell["values"]) == 1:
        return short(cell["median"]) + used
    return f"{short(cell['median'])} ({short(cell['low'])}-{short(cell['high'])}){used}"


def _print_columns(lines: list[list[str]]) -> None:
    """The first and the last column to the left, figures to the right, a rule below the head."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for number, line in enumerate(lines):
        middle = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)][1:-1]
        print("  ".join([line[0].ljust(widths[0]), *middle, line[-1]]).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))
