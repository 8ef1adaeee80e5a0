"""scaling.json as a table: the best size for each budget, and the prediction beside the truth."""

from collections.abc import Mapping, Sequence
from typing import Any

from groundup.experiments.report.curves import NUM_SLOTS
from groundup.experiments.report.curves_by_setting import SettingChart, SettingLine, SettingPoint
from groundup.experiments.report.figure_text import UNKNOWN, show_count, show_flops, show_loss
from groundup.experiments.report.studies import Mark, Study, StudyRow
from groundup.experiments.results.statistics import Interval


def scaling_study(values: Mapping[str, Any]) -> Study:
    """A row for each budget, the predicted one last."""
    rungs, prediction = values["rungs"], values["prediction"]
    rows = []
    for fit in values["fits"]:
        budget = fit["budget_flops"]
        sizes = [rung for rung in rungs if rung["budget_flops"] == budget]
        lowest = min(sizes, key=lambda rung: float(rung["loss"]))
        outside = Mark("→", "at the end of the ladder: add widths", "unfinished")
        rows.append(
            StudyRow(
                (
                    show_flops(budget),
                    str(len(sizes)),
                    f"{show_count(lowest['num_parameters'])} with {show_loss(lowest['loss'])}",
                    show_count(fit["best_parameters"]),
                    show_loss(fit["best_loss"]),
                    UNKNOWN,
                ),
                () if fit["is_inside"] else (outside,),
            )
        )
    if prediction is not None:
        num_inside = sum(bool(fit["is_inside"]) for fit in values["fits"])
        rows.append(_prediction_row(prediction, is_sound=num_inside >= 2))
    return Study(
        title="Best size for each budget",
        lede="For each budget of training operations, a parabola of the loss over the logarithm of "
        "the number of parameters has its lowest point at the best size; power laws through these "
        f"points predict the next budget.{_laws(values)}",
        headers=(
            "Budget",
            "Sizes trained",
            "Best one trained",
            "Best size by the fit",
            "Loss by the fit",
            "Loss when trained",
        ),
        rows=tuple(rows),
        chart=_ladder(rungs, prediction),
        verdict="" if prediction is None else _prediction_verdict(prediction),
    )


def _prediction_row(prediction: Mapping[str, Any], *, is_sound: bool) -> StudyRow:
    measured = prediction["measured_loss"]
    told = (
        UNKNOWN
        if measured is None
        else f"{show_loss(measured)} ({measured - prediction['predicted_loss']:+.4f})"
    )
    size = f"width {prediction['d_model']:,}, {show_count(prediction['num_parameters'])} parameters"
    mark = Mark(
        "◇", "predicted" if measured is None else f"predicted, then trained: {size}", "tied"
    )
    guess = Mark("→", "rests on best sizes at the ladder's end: a guess", "unfinished")
    return StudyRow(
        (
            show_flops(prediction["budget_flops"]),
            "0" if measured is None else "1",
            UNKNOWN,
            show_count(prediction["best_parameters"]),
            show_loss(prediction["predicted_loss"]),
            told,
        ),
        (mark,) if is_sound else (mark, guess),
    )


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
        f" Here the best size goes with operations to the power {size['exponent']:.3f}, and its "
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


def _ladder(
    rungs: Sequence[Mapping[str, Any]], prediction: Mapping[str, Any] | None
) -> SettingChart | None:
    """Loss over size, a line for each budget; the prediction and its test as single marks."""
    lines: list[SettingLine] = []
    for budget in dict.fromkeys(rung["budget_flops"] for rung in rungs):
        here = [rung for rung in rungs if rung["budget_flops"] == budget]
        lowest = min(float(rung["loss"]) for rung in here)
        points = [
            SettingPoint(
                float(rung["num_parameters"]),
                Interval(float(rung["loss"]), None, 1),
                is_best=rung["loss"] == lowest,
            )
            for rung in here
        ]
        lines.append(SettingLine(show_flops(budget), _slot(lines), tuple(points)))
    if prediction is not None:
        told = {
            "predicted": (prediction["best_parameters"], prediction["predicted_loss"]),
            "trained": (prediction["num_parameters"], prediction["measured_loss"]),
        }
        for word, (size, loss) in told.items():
            if loss is not None:
                is_open = word == "predicted"
                point = SettingPoint(float(size), Interval(float(loss), None, 1), is_open=is_open)
                label = f"{show_flops(prediction['budget_flops'])}, {word}"
                lines.append(SettingLine(label, _slot(lines), (point,)))
    return SettingChart("parameters", "Loss", tuple(lines)) if lines else None


def _slot(lines: Sequence[SettingLine]) -> int | None:
    return len(lines) if len(lines) < NUM_SLOTS else None
