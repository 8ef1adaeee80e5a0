"""The tables of a report, as values that the page and the command line print alike."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from groundup.config import flatten
from groundup.experiments.ablation import BASE, AblationRow
from groundup.experiments.cost import mean_cost
from groundup.experiments.groups import Group, show_setting
from groundup.experiments.isoflop import IsoflopResult
from groundup.experiments.run_result import RunResult
from groundup.experiments.statistics import Interval
from groundup.planner.quantities import show_bytes, show_count, show_flops
from groundup.runtime import format_duration

UNKNOWN = "—"
# What a sign beside a row means; the key is also a class of the style sheet.
STATES = {
    "finished": ("✓", "finished"),
    "running": ("◔", "still training"),
    "unfinished": ("◑", "unfinished"),
    "diverged": ("✕", "diverged"),
    "pruned": ("✂", "pruned"),
    "failed": ("!", "failed"),
    "empty": ("○", "no metrics yet"),
}
_TOLD_ELSEWHERE = ("command", "started", "seed", "resumes")
_MOST_NAMES = 6


@dataclass(frozen=True)
class Mark:
    """A sign and words beside a row; the kind chooses a color."""

    sign: str
    text: str
    kind: str = ""


@dataclass(frozen=True)
class Cell:
    """A cell of a table, with small words below it and marks."""

    text: str
    note: str = ""
    marks: tuple[Mark, ...] = ()
    is_strong: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of cells; the first cell names its row."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[Cell | str, ...], ...]
    kind: str = ""

    @classmethod
    def of(cls, title: str, rows: Sequence[Mapping[str, Cell | str]], kind: str = "") -> "Table":
        """A table of rows by their headers, which all rows share."""
        headers = tuple(rows[0]) if rows else ()
        return cls(title, headers, tuple(tuple(row.values()) for row in rows), kind)


def shown(show: Callable[[float], str], number: float | None) -> str:
    """A number as it is shown, or a dash where it is not known."""
    return UNKNOWN if number is None else show(number)


def show_loss(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 100 else f"{value:.4g}"


def show_interval(interval: Interval | None) -> str:
    """mean ± half width, or the one value there is."""
    if interval is None or interval.half_width is None:
        return shown(show_loss, None if interval is None else interval.mean)
    return f"{show_loss(interval.mean)} ± {show_loss(interval.half_width)}"


def list_names(names: Sequence[str]) -> str:
    """The names, or the first of them and how many more there are."""
    told = ", ".join(names[:_MOST_NAMES])
    return told if len(names) <= _MOST_NAMES else f"{told} and {len(names) - _MOST_NAMES} more"


def results_table(groups: Sequence[Group], measure: str, data_names: Mapping[Any, str]) -> Table:
    """The groups from best to worst; the first of each data set is the best, some are tied."""
    rows = []
    for group in groups:
        marks = [Mark("★", "best", "winner")] if group.is_winner else []
        if "tied" in group.marks:
            marks.append(Mark("≈", "not told apart from the best", "tied"))
        for state, (sign, word) in STATES.items():
            count = sum(run.outcome.state == state for run in group.runs)
            if count and state != "finished":
                of_all = f", {count} of {len(group.runs)}" if len(group.runs) > 1 else ""
                marks.append(Mark(sign, word + of_all, state))
        if len(data_names) > 1:
            marks.append(Mark("▤", data_names[group.data_id], "data"))
        seeds = ", ".join(map(str, group.seeds))
        note = f"{len(group.seeds)} seeds: {seeds}" if len(group.seeds) > 1 else ""
        tokens, seconds = group.last("tokens"), group.last("wall_seconds")
        rows.append(
            {
                "Runs": Cell(group.label, note, tuple(marks)),
                f"Best {measure} ± 95%": Cell(show_interval(group.best), is_strong=group.is_winner),
                f"Last {measure}": show_interval(group.last(group.measure)),
                "Bits per byte at the best": show_interval(group.at_best("bits_per_byte")),
                "Training loss": show_interval(group.last("loss")),
                "Tokens": shown(show_count, tokens and tokens.mean),
                "Wall clock": shown(format_duration, seconds and seconds.mean),
            }
        )
    return Table.of(f"Results, best {measure} first", rows, "results")


def settings_table(groups: Sequence[Group]) -> Table | None:
    """The settings in which groups differ."""
    if not groups or not groups[0].differences:
        return None
    rows = [
        {"Runs": group.label, **{k: show_setting(v) for k, v in group.differences.items()}}
        for group in groups
    ]
    return Table.of("Settings that differ", rows, "settings")


def cost_table(groups: Sequence[Group]) -> Table:
    """What a run of each group cost on average."""
    rows = []
    for group in groups:
        cost = mean_cost([run.cost for run in group.counted or group.runs])
        rows.append(
            {
                "Runs": group.label,
                "Parameters": shown(show_count, cost.num_parameters),
                "Compute": shown(show_flops, cost.flops),
                "Tokens": shown(show_count, cost.tokens),
                "Tokens per second": shown(show_count, cost.tokens_per_second),
                "MFU": shown("{:.1%}".format, cost.mfu),
                "Wall clock": shown(format_duration, cost.seconds),
                "Memory": shown(show_bytes, cost.memory_bytes),
            }
        )
    return Table.of("Cost of a run", rows, "cost")


def runs_table(runs: Sequence[RunResult]) -> Table:
    """Every run with its state, folder and command."""
    rows = []
    for run in runs:
        sign, word = STATES[run.outcome.state]
        words = run.environment.get("command")
        words = [str(one) for one in words] if isinstance(words, list) and words else []
        program = words[0].rpartition("/")[2] if words else ""
        words[:1] = ["groundup" if program == "__main__.py" else program] if words else []
        rows.append(
            {
                "Run": Cell(run.name, marks=(Mark(sign, word, run.outcome.state),)),
                "Seed": UNKNOWN if run.seed is None else str(run.seed),
                "Steps": f"{run.metrics.last_step:,}",
                "Tokens": shown(show_count, run.cost.tokens),
                "Wall clock": shown(format_duration, run.cost.seconds),
                "Began": str(run.environment.get("started", UNKNOWN)).replace("T", " "),
                "Outcome": run.outcome.sentence,
                "Folder": Cell(str(run.path), shlex.join(words)),
            }
        )
    return Table.of("Every run", rows, "runs")


def environment_parts(runs: Sequence[RunResult]) -> tuple[dict[str, str], Table | None]:
    """What all environments say alike; and what differs, with the runs that say so."""
    known = [run for run in runs if run.environment]
    flat = [
        {name: show_setting(value) for name, value in flatten(run.environment)} for run in known
    ]
    shared: dict[str, str] = {}
    rows = []
    for name in dict.fromkeys(name for one in flat for name in one):
        names: dict[str, list[str]] = {}
        for run, one in zip(known, flat, strict=True):
            names.setdefault(one.get(name, UNKNOWN), []).append(run.name)
        if name in _TOLD_ELSEWHERE:
            continue
        if len(names) == 1:
            shared[name] = next(iter(names))
        else:
            rows += [
                {"What differs": name, "Value": value, "Runs": list_names(these)}
                for value, these in names.items()
            ]
    return shared, Table.of("Environments that differ", rows, "differing") if rows else None


def ablation_table(rows: Sequence[AblationRow]) -> Table:
    """The base first, then each variant at its best learning rate, from the best to the worst."""
    told = []
    for row in rows:
        is_told = row.difference is not None and row.variant != BASE
        told.append(
            {
                "Variant": Cell(row.variant, marks=_ablation_marks(row)),
                "Parameters": f"{row.num_parameters:,}",
                "Best learning rate": shown("{:g}".format, row.learning_rate),
                "Rates tried": _rates(row.rates_tried),
                "Loss": show_interval(row.loss),
                "Difference from the base": f"{row.difference:+.4f}" if is_told else UNKNOWN,
            }
        )
    return Table.of("Variants at their best learning rates", told, "study")


def _ablation_marks(row: AblationRow) -> tuple[Mark, ...]:
    marks = []
    if row.loss is None:
        marks.append(Mark("✕", "no run finished", "diverged"))
    elif row.variant != BASE and not row.is_clear:
        marks.append(Mark("≈", "not told apart from the base", "tied"))
    elif row.variant != BASE and row.difference is not None:
        is_better = row.difference < 0
        kinds = ("★", "better", "winner") if is_better else ("▲", "worse", "diverged")
        marks.append(Mark(*kinds))
    if row.is_at_edge:
        alone = len(row.rates_tried) == 1
        words = "the only rate tried" if alone else "best rate at the end of those tried"
        marks.append(Mark("→", words, "unfinished"))
    if row.diverged_at:
        marks.append(Mark("✕", f"diverged at {_rates(row.diverged_at)}", "diverged"))
    return tuple(marks)


def _rates(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates) or UNKNOWN


def isoflop_tables(result: IsoflopResult) -> list[Table]:
    """A row for each budget, the predicted one last; then the laws; then every size."""
    rows = []
    for fit in result.fits:
        sizes = [size for size in result.sizes if size.budget_flops == fit.budget_flops]
        outside = Mark("→", "at the end of the sizes: add widths", "unfinished")
        rows.append(
            {
                "Budget": Cell(
                    show_flops(fit.budget_flops), marks=() if fit.is_inside else (outside,)
                ),
                "Sizes trained": str(len(sizes)),
                "Best size by the fit": show_count(fit.best_parameters),
                "Loss by the fit": show_loss(fit.best_loss),
                "Loss when trained": UNKNOWN,
            }
        )
    prediction, measured = result.prediction, result.prediction.measured_loss
    size = f"width {prediction.d_model:,}, {show_count(prediction.num_parameters)} parameters"
    predicted = Mark("◇", f"predicted: {size}", "tied")
    miss = "" if measured is None else f" ({measured - prediction.predicted_loss:+.4f})"
    rows.append(
        {
            "Budget": Cell(show_flops(prediction.budget_flops), marks=(predicted,)),
            "Sizes trained": "0" if measured is None else "1",
            "Best size by the fit": show_count(prediction.best_parameters),
            "Loss by the fit": show_loss(prediction.predicted_loss),
            "Loss when trained": shown(show_loss, measured) + miss,
        }
    )
    laws = [
        {"Law": name, "Factor": f"{law.factor:.4g}", "Exponent": f"{law.exponent:.4f}"}
        for name, law in (("best size", result.size_law), ("its loss", result.loss_law))
    ]
    sizes_rows = [
        {
            "FLOPs": f"{size.budget_flops:.3g}",
            "Width": f"{size.d_model:,}",
            "Layers": str(size.num_layers),
            "Parameters": f"{size.num_parameters:,}",
            "Tokens": f"{size.tokens:,}",
            "Learning rate": f"{size.learning_rate:g}",
            "Loss": show_loss(size.loss),
        }
        for size in result.sizes
    ]
    return [
        Table.of("Best size for each budget", rows, "study"),
        Table.of("Power laws of the budget in FLOPs", laws, "study"),
        Table.of("Sizes", sizes_rows, "study"),
    ]


def spelled(value: Any) -> str:
    """For JSON inside a page: nothing in it can end a script."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")
