"""The tables of a report's page: results with intervals, settings that differ, cost."""

import statistics
from collections.abc import Sequence

from groundup.experiments.report.contents import Report
from groundup.experiments.report.curves import Curve
from groundup.experiments.report.curves_svg import draw_key
from groundup.experiments.report.figure_text import (
    UNKNOWN,
    markup,
    show_bytes,
    show_count,
    show_duration,
    show_flops,
    show_interval,
    show_percent,
)
from groundup.experiments.results.groups import (
    Group,
    common_values,
    describe_sameness,
    settings_without_usual,
    shared_settings,
    show_setting,
)
from groundup.experiments.results.run_cost import mean_cost
from groundup.experiments.results.statistics import Interval

STATES = {
    "finished": ("✓", "finished"),
    "running": ("◔", "still training"),
    "unfinished": ("◑", "unfinished"),
    "diverged": ("✕", "diverged"),
    "pruned": ("✂", "pruned"),
    "failed": ("!", "failed"),
    "empty": ("○", "no figures yet"),
}
_LONGEST_VALUE = 80
_FARTHEST = 4.0


def table(
    caption: str, headers: Sequence[str], rows: Sequence[Sequence[str]], kind: str = ""
) -> str:
    """A table that scrolls by itself; cells are markup, the first of a row names it."""
    head = "".join(f'<th scope="col">{header}</th>' for header in headers)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>'
        + "".join(f"<td>{cell}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" role="region" aria-label="{caption}" tabindex="0">'
        f'<table class="{kind}"><caption class="visually-hidden">{caption}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def badge(sign: str, text: str, kind: str) -> str:
    """A state as a sign, a word and a colour, any of which suffices."""
    return (
        f'<span class="badge {kind}"><span aria-hidden="true">{sign}</span> {markup(text)}</span>'
    )


def state_badge(state: str, told: str = "") -> str:
    sign, word = STATES[state]
    return badge(sign, told or word, state)


def results_table(report: Report, keys: dict[str, Curve]) -> str:
    """The groups from best to worst."""
    span = _span([group.best for group in report.groups])
    name = markup(report.measure_name)
    headers = [
        "Runs",
        f"Best {name}<small>mean ± 95% interval</small>",
        '<span class="visually-hidden">Drawn</span>',
        f"Last {name}",
        "Bits per byte<small>at the best</small>",
        "Training loss",
        "Tokens read",
        "Wall clock",
    ]
    rows = []
    for group in report.groups:
        best = show_interval(group.best)
        rows.append(
            [
                _group_cell(report, group, keys),
                f"<strong>{best}</strong>" if group.is_winner else best,
                _draw_interval(group.best, span),
                show_interval(group.figure(report.measure)),
                show_interval(group.figure_at_best("bits_per_byte")),
                show_interval(group.figure("loss")),
                show_count(_mean(group.figure("tokens"))),
                show_duration(_mean(group.figure("wall_seconds"))),
            ]
        )
    return table(f"Results, best {name} first", headers, rows, "results")


def settings_table(report: Report) -> str:
    """The settings in which groups differ; values off the usual one stand out."""
    usual = common_values(report.groups)
    if not usual:
        return f"<p>{describe_sameness(report.runs)}</p>"
    headers = ["Runs", *(_setting_header(name) for name in usual)]
    without_usual = settings_without_usual(report.groups)
    rows = []
    for group in report.groups:
        cells = [markup(group.label)]
        for name, value in usual.items():
            own = show_setting(group.differences[name]) if group.runs[0].settings else UNKNOWN
            shown = markup(own)
            is_usual = name in without_usual or own in (show_setting(value), UNKNOWN)
            cells.append(f'<span class="usual">{shown}</span>' if is_usual else f"<b>{shown}</b>")
        rows.append(cells)
    return table("Settings that differ", headers, rows, "settings")


def shared_settings_list(report: Report) -> str:
    """What all runs have in common, folded away."""
    shared = shared_settings(report.runs)
    if not shared:
        return ""
    items = "".join(
        f"<div><dt>{markup(name)}</dt><dd>{markup(show_setting(value)[:_LONGEST_VALUE])}</dd></div>"
        for name, value in shared.items()
    )
    return (
        f"<details><summary>{describe_shared(report)}</summary>"
        f'<dl class="pairs">{items}</dl></details>'
    )


def describe_shared(report: Report) -> str:
    """What the settings are that do not differ."""
    count = len(shared_settings(report.runs))
    return f"All {count} settings" if len(report.runs) == 1 else f"{count} settings all runs share"


def cost_table(report: Report) -> str:
    """What a run of each group was to cost beside what it did cost on average."""
    headers = [
        "Runs",
        "Parameters",
        "Operations",
        "Tokens",
        "Tokens a second",
        "MFU",
        "Wall clock",
        "Memory",
    ]
    rows = []
    for group in report.groups:
        cost = mean_cost([run.cost for run in group.counted or group.runs])
        rows.append(
            [
                markup(group.label),
                show_count(cost.num_parameters),
                show_flops(cost.flops),
                _against(show_count(cost.tokens), show_count(cost.planned_tokens)),
                _against(
                    show_count(cost.tokens_per_second), show_count(cost.planned_tokens_per_second)
                ),
                _against(show_percent(cost.mfu), show_percent(cost.planned_mfu)),
                _against(show_duration(cost.seconds), show_duration(cost.planned_seconds)),
                _against(show_bytes(cost.memory_bytes), show_bytes(cost.planned_bytes)),
            ]
        )
    return table("Measured cost, with what was planned below it", headers, rows, "cost")


def _group_cell(report: Report, group: Group, keys: dict[str, Curve]) -> str:
    key = draw_key(keys[group.label]) if group.label in keys else ""
    marks = []
    if group.is_winner:
        marks.append(badge("★", "best", "winner"))
    if "tied" in group.marks:
        marks.append(badge("≈", "not told apart from the best", "tied"))
    for state in STATES:
        count = sum(run.outcome.state == state for run in group.runs)
        if count and state != "finished":
            told = f"{STATES[state][1]}, {count} of {len(group.runs)}"
            marks.append(state_badge(state, told if len(group.runs) > 1 else ""))
    if len(report.data_ids) > 1:
        marks.append(badge("▤", report.data_name(group.data_id), "data"))
    seeds = group.seeds
    repeated = f"{len(seeds)} seeds: {', '.join(map(str, seeds))}" if len(seeds) > 1 else ""
    return (
        f'<span class="group">{key}<span>{markup(group.label)}'
        f"<small>{markup(repeated)}</small></span></span>{''.join(marks)}"
    )


def _setting_header(name: str) -> str:
    section, _, last = name.rpartition(".")
    return f"{markup(last)}<small>{markup(section)}</small>"


def _against(measured: str, planned: str) -> str:
    below = "" if planned in (UNKNOWN, measured) else f"<small>planned {planned}</small>"
    return f"{measured}{below}"


def _mean(interval: Interval | None) -> float | None:
    return None if interval is None else interval.mean


def _span(intervals: Sequence[Interval | None]) -> tuple[float, float]:
    """The scale of the drawn intervals: all of them, but for what lies far beyond the middle."""
    known = [interval for interval in intervals if interval is not None]
    if not known:
        return 0.0, 1.0
    low, high = min(one.low for one in known), max(one.high for one in known)
    middle = statistics.median(one.high for one in known)
    return low, min(high, low + _FARTHEST * (middle - low)) if middle > low else high


def _draw_interval(interval: Interval | None, span: tuple[float, float]) -> str:
    """The interval on a scale that all rows share."""
    if interval is None or not span[1] > span[0]:
        return ""

    def place(value: float) -> str:
        share = (min(value, span[1]) - span[0]) / (span[1] - span[0])
        return f"{6 + 108 * share:.1f}"

    if interval.mean > span[1]:
        return (
            '<svg class="whisker" viewBox="0 0 120 16" width="120" height="16" aria-hidden="true">'
            '<path class="rail" d="M2 8H118"/><path d="M108 4l5 4l-5 4"/></svg>'
        )
    low, middle, high = place(interval.low), place(interval.mean), place(interval.high)
    return (
        '<svg class="whisker" viewBox="0 0 120 16" width="120" height="16" aria-hidden="true">'
        f'<path class="rail" d="M2 8H118"/><path d="M{low} 8H{high}M{low} 4v8M{high} 4v8"/>'
        f'<circle cx="{middle}" cy="8" r="4"/></svg>'
    )
