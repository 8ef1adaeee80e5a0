"""ablation.json as a table of what each part of a recipe is worth."""

from collections.abc import Mapping, Sequence
from typing import Any

from groundup.experiments.report.figure_text import UNKNOWN, show_interval
from groundup.experiments.report.studies import Mark, Study, StudyRow
from groundup.experiments.results.statistics import Interval


def ablation_study(rows: Sequence[Mapping[str, Any]]) -> Study:
    """The rows of the file in their order: the base first, then from the best to the worst."""
    if not isinstance(rows, list) or not rows:
        raise TypeError("an ablation is a list of rows")
    known = [row for row in rows if row["variant"] != "base" and row["difference"] is not None]
    best = min(known, key=lambda row: float(row["difference"]), default=None)
    # Files of before the search beyond the list do not say what was tried.
    knows_rates = all("rates_tried" in row for row in rows)
    told = []
    for row in rows:
        is_base = row["variant"] == "base"
        rate, difference = row["learning_rate"], row["difference"]
        told.append(
            StudyRow(
                (
                    str(row["variant"]),
                    f"{row['num_parameters']:,}",
                    UNKNOWN if rate is None else f"{rate:g}",
                    *([_show_rates(row["rates_tried"])] if knows_rates else []),
                    show_interval(_interval(row["loss"])),
                    UNKNOWN if difference is None or is_base else f"{difference:+.4f}",
                ),
                tuple(_ablation_marks(row, is_best=row is best)),
            )
        )
    verdict = _verdict(rows)
    return Study(
        title="What each part is worth",
        lede="Each variant at the best of the learning rates tried, with as many parameters and "
        "tokens as the base. The loss is the lowest validation loss, mean ± 95% interval over "
        "seeds; a difference above 0 is worse than the base.",
        headers=(
            "Variant",
            "Parameters",
            "Best learning rate",
            *(["Rates tried"] if knows_rates else []),
            "Loss",
            "Difference from the base",
        ),
        rows=tuple(told),
        verdict=verdict,
        is_ranking=bool(verdict),
    )


def _verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    """Which variants are better than the base, and which are worse; nothing without its loss."""
    bases = [row for row in rows if row["variant"] == "base" and row["loss"] is not None]
    others = [row for row in rows if row["variant"] != "base"]
    if not bases or not others:
        return ""
    ended = [row for row in others if row["difference"] is not None]
    kinds = {
        "clearly better": [row for row in ended if row["is_clear"] and row["difference"] < 0],
        "clearly worse": [row for row in ended if row["is_clear"] and row["difference"] >= 0],
        "not told apart from it": [row for row in ended if not row["is_clear"]],
        "without a run that came to its end": [row for row in others if row not in ended],
    }
    parts = [f"{told}: {_list_variants(these)}" for told, these in kinds.items() if these]
    loss = show_interval(_interval(bases[0]["loss"]))
    return f"Against the base ({loss}), each at its own best rate, are {'; '.join(parts)}."


def _list_variants(rows: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(
        str(row["variant"])
        if row["difference"] is None
        else f"{row['variant']} ({row['difference']:+.4f})"
        for row in rows
    )


def _ablation_marks(row: Mapping[str, Any], *, is_best: bool) -> list[Mark]:
    marks = []
    if row["loss"] is None:
        marks.append(Mark("✕", "no run came to its end", "diverged"))
    elif row["is_clear"] and row["difference"] < 0:
        marks.append(Mark("★", "clearly better", "winner"))
    elif row["is_clear"]:
        marks.append(Mark("▲", "clearly worse", "diverged"))
    elif row["variant"] != "base":
        marks.append(Mark("≈", "not told apart from the base", "tied"))
    if is_best and row["difference"] < 0 and not row["is_clear"]:
        marks.append(Mark("★", "lowest mean", "tied"))
    if row["is_at_edge"]:
        is_alone = len(row.get("rates_tried", ())) == 1
        told = "the only rate tried" if is_alone else "best rate at the end of those tried"
        marks.append(Mark("→", told, "unfinished"))
    if row["diverged_at"]:
        marks.append(Mark("✕", f"diverged at {_show_rates(row['diverged_at'])}", "diverged"))
    return marks


def _show_rates(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates) or UNKNOWN


def _interval(value: Mapping[str, Any] | None) -> Interval | None:
    if value is None:
        return None
    return Interval(float(value["mean"]), value["half_width"], int(value["num_values"]))
