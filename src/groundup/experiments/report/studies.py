"""What ablations and ladders of sizes came to, from ablation.json and scaling.json, as sections."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from groundup.experiments.report.charts import NUM_STYLES, Chart, Line, chart_over
from groundup.experiments.report.document import Cell, Figure, Mark, Section, Table, Text
from groundup.experiments.report.text import (
    UNKNOWN,
    show_count,
    show_flops,
    show_interval,
    show_loss,
    shown,
)
from groundup.experiments.results.statistics import Interval


@dataclass(frozen=True)
class Study:
    """A section, and what it says in a sentence."""

    section: Section
    verdict: str = ""
    is_ranking: bool = False
    """Whether the verdict says what came of the runs, so that none has to be read from them."""

    @property
    def has_chart(self) -> bool:
        return any(isinstance(block, Figure) for block in self.section.blocks)


def read_studies(sweeps: Sequence[Path]) -> tuple[list[Study], list[str]]:
    """The studies in the folders of sweeps, and a note for each that cannot be read."""
    studies: list[Study] = []
    notes = []
    for folder in sweeps:
        for name, read in (("ablation.json", ablation_study), ("scaling.json", scaling_study)):
            file = folder / name
            if not file.is_file():
                continue
            anchor = f"study-{len(studies) + 1}"
            try:
                study = read(json.loads(file.read_bytes()), anchor)
            except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
                notes.append(f"{name} of {folder.name} cannot be read; its runs are shown without")
                continue
            if len(sweeps) > 1:
                title = f"{study.section.title}: {folder.name}"
                study = replace(study, section=replace(study.section, title=title))
            studies.append(study)
    return studies, notes


def ablation_study(rows: Sequence[Mapping[str, Any]], anchor: str) -> Study:
    """The rows of the file in their order: the base first, then from the best to the worst."""
    if not isinstance(rows, list) or not rows:
        raise TypeError("an ablation is a list of rows")
    known = [row for row in rows if row["variant"] != "base" and row["difference"] is not None]
    best = min(known, key=lambda row: float(row["difference"]), default=None)
    told = []
    for row in rows:
        is_told = row["difference"] is not None and row["variant"] != "base"
        cells: dict[str, Cell | str] = {
            "Variant": Cell(row["variant"], marks=_ablation_marks(row, is_best=row is best)),
            "Parameters": f"{row['num_parameters']:,}",
            "Best learning rate": shown("{:g}".format, row["learning_rate"]),
            "Rates tried": _show_rates(row.get("rates_tried", ())),
            "Loss": show_interval(_interval(row["loss"])),
            "Difference from the base": f"{row['difference']:+.4f}" if is_told else UNKNOWN,
        }
        told.append(cells)
    title = "What each part is worth"
    lede = (
        "Each variant at the best of the learning rates tried, with as many parameters and tokens "
        f"as the base{_unmatched(rows)}. The loss is the lowest validation loss, mean ± 95% "
        "interval over seeds; a difference above 0 is worse than the base."
    )
    verdict = _verdict(rows)
    blocks = (Text(lede), Table.of(title, told, "study"))
    return Study(Section(anchor, title, blocks), verdict, is_ranking=bool(verdict))


def _unmatched(rows: Sequence[Mapping[str, Any]]) -> str:
    """The variants with more or fewer parameters than the base, in whole percent."""
    size = max(1, rows[0]["num_parameters"])
    told = {row["variant"]: f"{row['num_parameters'] / size - 1:+.0%}" for row in rows}
    names = [f"{name} ({off})" for name, off in told.items() if off[1:] != "0%"]
    return f", but for the parameters of {', '.join(names)}" if names else ""


def _verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    """Which variants are better than the base, and which are worse; nothing without its loss."""
    bases = [row for row in rows if row["variant"] == "base" and row["loss"] is not None]
    kinds: dict[str, list[str]] = {}
    for row in rows:
        if row["variant"] != "base" and (mark := _mark(row)) is not None:
            difference = "" if row["difference"] is None else f" ({row['difference']:+.4f})"
            kinds.setdefault(mark.text, []).append(f"{row['variant']}{difference}")
    if not bases or not kinds:
        return ""
    parts = "; ".join(f"{told}: {', '.join(names)}" for told, names in kinds.items())
    loss = show_interval(_interval(bases[0]["loss"]))
    return f"Against the base ({loss}), each at its own best learning rate: {parts}."


def _mark(row: Mapping[str, Any]) -> Mark | None:
    """How a variant compares with the base."""
    if row["loss"] is None:
        return Mark("✕", "no run came to its end", "diverged")
    if row["variant"] == "base":
        return None
    if not row["is_clear"]:
        return Mark("≈", "not told apart from the base", "tied")
    if row["difference"] < 0:
        return Mark("★", "clearly better", "winner")
    return Mark("▲", "clearly worse", "diverged")


def _ablation_marks(row: Mapping[str, Any], *, is_best: bool) -> tuple[Mark, ...]:
    compared = _mark(row)
    marks = [] if compared is None else [compared]
    if is_best and row["difference"] < 0 and not row["is_clear"]:
        marks.append(Mark("★", "lowest mean", "tied"))
    if row["is_at_edge"]:
        is_alone = len(row.get("rates_tried", ())) == 1
        told = "the only rate tried" if is_alone else "best rate at the end of those tried"
        marks.append(Mark("→", told, "unfinished"))
    if row["diverged_at"]:
        marks.append(Mark("✕", f"diverged at {_show_rates(row['diverged_at'])}", "diverged"))
    return tuple(marks)


def _show_rates(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates) or UNKNOWN


def _interval(value: Mapping[str, Any] | None) -> Interval | None:
    if value is None:
        return None
    return Interval(float(value["mean"]), value["half_width"], int(value["num_values"]))


def scaling_study(values: Mapping[str, Any], anchor: str) -> Study:
    """A row for each budget, the predicted one last."""
    rungs, prediction = values["rungs"], values["prediction"]
    rows: list[dict[str, Cell | str]] = []
    for fit in values["fits"]:
        budget = fit["budget_flops"]
        sizes = [rung for rung in rungs if rung["budget_flops"] == budget]
        lowest = min(sizes, key=lambda rung: float(rung["loss"]))
        outside = Mark("→", "at the end of the ladder: add widths", "unfinished")
        rows.append(
            {
                "Budget": Cell(show_flops(budget), marks=() if fit["is_inside"] else (outside,)),
                "Sizes trained": str(len(sizes)),
                "Best one trained": (
                    f"{show_count(lowest['num_parameters'])} with {show_loss(lowest['loss'])}"
                ),
                "Best size by the fit": show_count(fit["best_parameters"]),
                "Loss by the fit": show_loss(fit["best_loss"]),
                "Loss when trained": UNKNOWN,
            }
        )
    if prediction is not None:
        num_inside = sum(bool(fit["is_inside"]) for fit in values["fits"])
        cells = _prediction_cells(prediction, is_sound=num_inside >= 2)
        rows.append(dict(zip(rows[0], cells, strict=True)))
    title = "Best size for each budget"
    lede = (
        "For each budget of training FLOPs, a parabola of the loss over the logarithm of the "
        "number of parameters has its lowest point at the best size; power laws through these "
        f"points predict the next budget.{_laws(values)}"
    )
    chart = _ladder(rungs, prediction)
    figure = Figure(anchor.replace("-", "_"), (chart,), chart.title)
    blocks = (Text(lede), Table.of(title, rows, "study"), figure)
    verdict = "" if prediction is None else _prediction_verdict(prediction)
    return Study(Section(anchor, title, blocks), verdict)


def _prediction_cells(prediction: Mapping[str, Any], *, is_sound: bool) -> list[Cell | str]:
    measured = prediction["measured_loss"]
    size = f"width {prediction['d_model']:,}, {show_count(prediction['num_parameters'])} parameters"
    trained = "" if measured is None else ", then trained"
    marks = [Mark("◇", f"predicted{trained}: {size}", "tied")]
    if not is_sound:
        told = "rests on best sizes at the ladder's end: a guess"
        marks.append(Mark("→", told, "unfinished"))
    return [
        Cell(show_flops(prediction["budget_flops"]), marks=tuple(marks)),
        "0" if measured is None else "1",
        UNKNOWN,
        show_count(prediction["best_parameters"]),
        show_loss(prediction["predicted_loss"]),
        UNKNOWN
        if measured is None
        else f"{show_loss(measured)} ({measured - prediction['predicted_loss']:+.4f})",
    ]


def _prediction_verdict(prediction: Mapping[str, Any]) -> str:
    predicted, measured = prediction["predicted_loss"], prediction["measured_loss"]
    told = (
        f"From the smaller budgets, {show_flops(prediction['budget_flops'])} were to reach a loss "
        f"of {show_loss(predicted)}"
    )
    above_floor = prediction.get("predicted_with_floor")
    if above_floor is not None:
        told += f", or {show_loss(above_floor)} by a law with a floor"
    if measured is None:
        return f"{told}; that has not been trained."
    distance = show_loss(abs(measured - predicted))
    where = "above" if measured > predicted else "below"
    which = "the prediction" if above_floor is None else "the first"
    return f"{told}; training them gave {show_loss(measured)}, {distance} {where} {which}."


def _laws(values: Mapping[str, Any]) -> str:
    size, loss = values["size_law"], values["loss_law"]
    if size is None or loss is None:
        return ""
    return (
        f" Here the best size grows as FLOPs to the power {size['exponent']:.3f}, and its "
        f"loss to the power {loss['exponent']:.4f}.{_floor(values.get('floor_fit'))}"
    )


def _floor(fit: Mapping[str, Any] | None) -> str:
    """Nothing where four budgets were not to be had, or did not determine it."""
    if fit is None:
        return ""
    law, missed, power_missed = fit["law"], fit["missed_by"], fit["power_law_missed_by"]
    closer = "the law with a floor" if abs(missed) < abs(power_missed) else "the power law"
    return (
        f" A law with a floor, a loss that no budget takes away, falls to {law['floor']:.4f} "
        f"({fit['least_floor']:.4f} to {fit['greatest_floor']:.4f} if any one budget is left out) "
        f"with the power {law['exponent']:.4f}. Fitted without the greatest budget, it misses that "
        f"one's loss by {missed:+.4f} and the power law by {power_missed:+.4f}: {closer} is closer."
    )


def _ladder(rungs: Sequence[Mapping[str, Any]], prediction: Mapping[str, Any] | None) -> Chart:
    """Loss over size, a line for each budget; the prediction and its test as single points."""
    lines: list[Line] = []
    for budget in dict.fromkeys(rung["budget_flops"] for rung in rungs):
        here = [rung for rung in rungs if rung["budget_flops"] == budget]
        points = tuple((float(rung["num_parameters"]), float(rung["loss"])) for rung in here)
        best = min(points, key=lambda point: point[1])
        lines.append(Line(show_flops(budget), points, _style(lines), stars=(best,)))
    if prediction is not None:
        told = {
            "predicted": (prediction["best_parameters"], prediction["predicted_loss"]),
            "trained": (prediction["num_parameters"], prediction["measured_loss"]),
        }
        for word, (size, loss) in told.items():
            if loss is not None:
                hollow = frozenset([float(size)] if word == "predicted" else [])
                label = f"{show_flops(prediction['budget_flops'])}, {word}"
                point = (float(size), float(loss))
                lines.append(Line(label, (point,), _style(lines), hollow=hollow))
    return chart_over("parameters", "Loss", lines)


def _style(lines: Sequence[Line]) -> int | None:
    return len(lines) if len(lines) < NUM_STYLES else None
