"""The best loss over a numeric setting that was varied: where it is lowest, where training fails.

A second varied setting, or the variants of a sweep, make a line each.
"""

from collections.abc import Sequence
from math import isfinite
from typing import Any

from groundup.experiments.report.charts import NUM_STYLES, Chart, Line, chart_over
from groundup.experiments.results.groups import Group, short_name, show_setting

_MOST_LINES = 12


def setting_chart(
    groups: Sequence[Group], varied: Sequence[str] | None, measure_name: str
) -> Chart | None:
    """The chart, or None if what varies is no number or too much varies.

    `varied` are the settings that a sweep names; without one, those that differ are taken.
    """
    groups = [group for group in groups if group.runs[0].settings]
    groups = [group for group in groups if group.best is not None or group.num_diverged]
    if len({group.data_id for group in groups}) != 1:
        return None
    if varied is None:
        # What was varied by hand; lengths in steps often follow from the rest.
        differing = list(groups[0].differences)
        varied = [name for name in differing if not name.endswith("_steps")] or differing
    names = [n for n in varied if len({repr(group.differences.get(n)) for group in groups}) > 1]
    variants = {group.runs[0].variant for group in groups}
    if not 1 <= len(names) <= (1 if len(variants) > 1 else 2):
        return None
    if not all(_is_number(group.differences[name]) for name in names for group in groups):
        return None
    members: dict[Any, list[Group]] = {}
    for group in groups:
        key = group.differences[names[1]] if len(names) > 1 else group.runs[0].variant
        members.setdefault(key, []).append(group)
    if len(names) > 1:
        members = dict(sorted(members.items()))
    # A line of single points would be no line: with random values there is nothing to connect.
    if len(members) > _MOST_LINES or len(members) * 2 > len(groups):
        return None
    lines = []
    for number, (key, batch) in enumerate(members.items()):
        label = f"{short_name(names[1])} {show_setting(key)}" if len(names) > 1 else str(key or "")
        lines.append(_line(batch, names[0], label, number if number < NUM_STYLES else None))
    return chart_over(short_name(names[0]), f"Best {measure_name}", lines)


def _line(groups: Sequence[Group], name: str, label: str, style: int | None) -> Line:
    ordered = sorted((float(group.differences[name]), group.label, group) for group in groups)
    known = [(x, group.best, group) for x, _, group in ordered if group.best]
    return Line(
        label,
        tuple((x, best.mean) for x, best, _ in known),
        style,
        half_widths=tuple(best.half_width for _, best, _ in known),
        crosses=tuple(x for x, _, group in ordered if group.num_diverged),
        stars=tuple((x, best.mean) for x, best, group in known if group.is_winner),
        hollow=frozenset(
            x
            for x, _, group in known
            if any(run.outcome.state not in ("finished", "diverged") for run in group.runs)
        ),
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
