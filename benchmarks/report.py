"""Shows what was measured: one table a task, one line a tool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from rows import Task

Json = dict[str, Any]


def print_task(task: Task, rows: list[Json]) -> None:
    """The rows of one task side by side; a ratio above 1 says that ours is better."""
    cores = "one core" if task.cores == 1 else f"{task.cores} cores"
    table = Table(title=escape(f"{task.title} ({cores})"), box=box.SIMPLE, title_justify="left")
    table.add_column("tool")
    for measure in task.measures:
        table.add_column(f"{measure.title or measure.name}, {measure.unit}", justify="right")
        table.add_column("ours is (by cpu)", justify="right")
    table.add_column("peak MB", justify="right")
    table.add_column("output")
    for tool in rows[0]["tools"]:
        cells = [row["tools"][tool] for row in rows]
        line = [tool]
        for cell in cells:
            line += [_spread(cell), _ratios(cell)]
        peak = cells[0].get("peak_bytes")
        words = [cells[0].get("error"), cells[0].get("agreement"), cells[0].get("note")]
        line.append("" if peak is None else f"{peak / 1e6:.0f}")
        line.append(escape(", ".join(word for word in words if word)))
        table.add_row(*line, style="red" if cells[0].get("agrees") is False else None)
    console = Console()
    # A table that goes to a file is not cut to the width of a terminal nobody has.
    Console(width=max(console.width, 160)).print(table)


def short(value: float) -> str:
    """Three digits that matter."""
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
    if len(cell["values"]) == 1:
        return short(cell["median"])
    return f"{short(cell['median'])} ({short(cell['low'])}-{short(cell['high'])})"
