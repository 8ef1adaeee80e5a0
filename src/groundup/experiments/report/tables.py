"""The tables of a report, for the page and the command line."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from groundup.experiments.groups import Group, show_setting
from groundup.experiments.run_result import RunResult
from groundup.experiments.statistics import Interval
from groundup.planner.quantities import show_bytes, show_count, show_flops
from groundup.runtime import format_duration

UNKNOWN = "—"


class Mark(NamedTuple):
    """A symbol and text next to a row; the kind is a CSS class."""

    sign: str
    text: str
    kind: str


STATES = {
    "finished": Mark("✓", "finished", "finished"),
    "running": Mark("◔", "still training", "running"),
    "unfinished": Mark("◑", "unfinished", "unfinished"),
    "diverged": Mark("✕", "diverged", "diverged"),
    "failed": Mark("!", "failed", "failed"),
    "empty": Mark("○", "no metrics yet", "empty"),
}
_MAX_NAMES = 6


@dataclass(frozen=True)
class Table:
    """Rows as cells by header; the first cell names the row and carries its marks."""

    title: str
    rows: Sequence[Mapping[str, str]]
    marks: Sequence[Sequence[Mark]] = ()

    @property
    def headers(self) -> list[str]:
        return list(self.rows[0]) if self.rows else []


def show_loss(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 100 else f"{value:.4g}"


def show_interval(interval: Interval | None) -> str:
    """mean ± half width, a single measurement, or a dash if it is unknown."""
    if interval is None:
        return UNKNOWN
    more = "" if interval.half_width is None else f" ± {show_loss(interval.half_width)}"
    return show_loss(interval.mean) + more


def list_names(names: Sequence[str]) -> str:
    """The names, or the first few and the number of the others."""
    shown = ", ".join(names[:_MAX_NAMES])
    return shown if len(names) <= _MAX_NAMES else f"{shown} and {len(names) - _MAX_NAMES} more"


def results_table(groups: Sequence[Group], measure: str, data_names: Mapping[Any, str]) -> Table:
    """The groups from best to worst, with marks for the best of each data set and ties."""
    rows, all_marks = [], []
    for group in groups:
        known = {
            "winner": [Mark("★", "best", "winner")],
            "tied": [Mark("≈", "not clearly worse than the best", "tied")],
        }
        marks = known.get(group.mark, [])
        for state, mark in STATES.items():
            count = sum(run.outcome.state == state for run in group.runs)
            if count and state != "finished":
                of_all = f", {count} of {len(group.runs)}" if len(group.runs) > 1 else ""
                marks.append(mark._replace(text=mark.text + of_all))
        if len(data_names) > 1:
            marks.append(Mark("▤", data_names[group.data_id], "data"))
        all_marks.append(marks)
        seeds = sorted({run.seed for run in group.runs if run.seed is not None})
        rows.append(
            {
                "Runs": group.label,
                "Seeds": ", ".join(map(str, seeds)) or UNKNOWN,
                f"Best {measure} ± 95%": show_interval(group.best),
                "Bits per byte at best": show_interval(group.at_best("bits_per_byte")),
            }
        )
    return Table(f"Results, best {measure} first", rows, all_marks)


def settings_table(groups: Sequence[Group]) -> Table | None:
    """The settings in which groups differ."""
    if not groups or not groups[0].differences:
        return None
    rows = [
        {"Runs": group.label, **{k: show_setting(v) for k, v in group.differences.items()}}
        for group in groups
    ]
    return Table("Settings that differ", rows)


def cost_table(groups: Sequence[Group]) -> Table:
    """The average cost of a run in each group."""
    columns: dict[str, tuple[str, Callable[[float], str]]] = {
        "Parameters": ("num_parameters", show_count),
        "Compute": ("flops", show_flops),
        "Tokens": ("tokens", show_count),
        "Tokens per second": ("tokens_per_second", show_count),
        "MFU": ("mfu", "{:.1%}".format),
        "Wall clock": ("seconds", format_duration),
        "Memory": ("memory_bytes", show_bytes),
    }
    rows = []
    for group in groups:
        row = {"Runs": group.label}
        for header, (name, show) in columns.items():
            values = [run.cost[name] for run in group.counted or group.runs]
            known = [value for value in values if value is not None]
            row[header] = show(sum(known) / len(known)) if known else UNKNOWN
        rows.append(row)
    return Table("Cost of a run", rows)


def runs_table(runs: Sequence[RunResult]) -> Table:
    """Every run with its state, folder and command."""
    rows = []
    for run in runs:
        words, found = run.environment.get("command"), run.outcome
        outcome = f"{found.state} after step {run.metrics.last_step:,}"
        rows.append(
            {
                "Run": run.name,
                "Started": str(run.environment.get("started", UNKNOWN)).replace("T", " "),
                "Outcome": outcome + (f": {found.reason:.600}" if found.reason else ""),
                "Folder": str(run.path),
                "Command": shlex.join(map(str, words)) if isinstance(words, list) else UNKNOWN,
            }
        )
    return Table("Every run", rows, [[STATES[run.outcome.state]] for run in runs])
