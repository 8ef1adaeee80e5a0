"""A report as one page: style and drawings inside, no script, nothing fetched.

Every axis of the curves is in the page; radio buttons and the style sheet choose which one shows.
"""

import datetime

from groundup.experiments.report.contents import Report
from groundup.experiments.report.curves import AXES, Axis, Curve, curves_of
from groundup.experiments.report.curves_by_setting import SettingChart
from groundup.experiments.report.curves_by_setting_svg import draw_setting_chart, draw_setting_keys
from groundup.experiments.report.curves_svg import (
    NARROW,
    SMALL,
    WIDE,
    describe,
    draw_chart,
    draw_key,
    ticks,
)
from groundup.experiments.report.details import environment_section, samples_section
from groundup.experiments.report.figure_text import (
    markup,
    show_count,
    show_duration,
    show_flops,
    show_interval,
    show_loss,
)
from groundup.experiments.report.page_frame import finding_aside, masthead, render_frame
from groundup.experiments.report.studies import Study
from groundup.experiments.report.tables import (
    badge,
    cost_table,
    results_table,
    settings_table,
    shared_settings_list,
    table,
)
from groundup.planner.duration import EXPECTED_MFU

MAIN_FIGURES = {"validation_loss": "Validation loss", "loss": "Training loss"}
MORE_FIGURES = {
    "bits_per_byte": "Bits per byte",
    "learning_rate": "Learning rate",
    "gradient_norm": "Gradient norm",
    "tokens_per_second": "Tokens a second",
}

_NUM_COLUMNS = 7


def render_html(report: Report) -> str:
    """The whole page."""
    today = datetime.date.today()
    drawn = {figure: curves_of(report.groups, figure) for figure in (*MAIN_FIGURES, *MORE_FIGURES)}
    keys = {curve.label: curve for curve in drawn["loss"]["step"]}
    keys |= {curve.label: curve for curve in drawn[report.measure]["step"]}
    chart = _setting_figure(report.chart) if report.chart else ""
    sections = {
        f"study-{place}": (markup(study.title), _study_section(study))
        for place, study in enumerate(report.studies, start=1)
    }
    sections |= {
        "results": ("Results", chart + results_table(report, keys)),
        "curves": ("Learning curves", _curves_section(report, drawn, keys)),
        "settings": ("Settings", settings_table(report) + shared_settings_list(report)),
        "cost": ("Cost, planned and measured", _cost_section(report)),
        "samples": ("Samples", samples_section(report)),
        "environment": ("Environment", environment_section(report)),
    }
    return render_frame(
        report.title,
        sections,
        opening=_opening(report, today),
        outcome=f"{_verdict_cards(report)}{finding_aside(report.finding)}{_warnings(report)}",
        command="groundup report",
        today=today,
    )


def _opening(report: Report, today: datetime.date) -> str:
    finished = sum(run.outcome.state == "finished" for run in report.runs)
    tokens = sum(run.cost.tokens or 0 for run in report.runs)
    flops = sum(run.cost.flops or 0 for run in report.runs)
    seconds = sum(run.cost.seconds or 0 for run in report.runs)
    devices = list(dict.fromkeys(str(run.environment.get("device", "")) for run in report.runs))
    devices = [device for device in devices if device]
    num_runs = len(report.runs)
    facts = [
        ("Runs", f"{num_runs}" if finished == num_runs else f"{finished} of {num_runs} finished"),
        ("Settings compared", str(len(report.groups))),
        ("Tokens read", show_count(tokens)),
        ("Operations", show_flops(flops) if flops else "—"),
        ("Time, all runs", show_duration(seconds)),
        ("Device", ", ".join(devices) or "—"),
        *([("Begun", report.days)] if report.days else []),
    ]
    return masthead("report", report.title, report.why, facts, today)


def _verdict_cards(report: Report) -> str:
    told = report.winners or [group for group in report.groups[:1] if len(report.groups) == 1]
    numbers = [(group.label, show_interval(group.best)) for group in told if group.best]
    cards = []
    for place, verdict in enumerate(report.verdicts):
        label, number = numbers[place] if place < len(numbers) else ("", "")
        text = f"<strong>{markup(label)}</strong>{markup(verdict.removeprefix(label))}"
        big = (
            f'<p class="number">{number}<small>{markup(report.measure_name)}</small></p>'
            if number
            else ""
        )
        cards.append(f'<div class="card verdict">{big}<p>{text}</p></div>')
    return f'<div class="verdicts" role="group" aria-label="Outcome">{"".join(cards)}</div>'


def _warnings(report: Report) -> str:
    if not report.warnings:
        return ""
    items = "".join(f"<li>{markup(warning)}</li>" for warning in report.warnings)
    return (
        '<aside class="notice" aria-labelledby="notice-title">'
        f'<h2 id="notice-title"><span aria-hidden="true">⚠</span> Read this first</h2>'
        f"<ul>{items}</ul></aside>"
    )


def _study_section(study: Study) -> str:
    rows = []
    for row in study.rows:
        name, *cells = (markup(cell) for cell in row.cells)
        marks = "".join(badge(mark.sign, mark.text, mark.kind) for mark in row.marks)
        rows.append([f"{name}<div>{marks}</div>", *cells])
    drawn = _setting_figure(study.chart) if study.chart else ""
    headers = [markup(header) for header in study.headers]
    lede = f'<p class="muted">{markup(study.lede)}</p>'
    return lede + table(markup(study.title), headers, rows, "study") + drawn


def _setting_figure(chart: SettingChart) -> str:
    keys = "".join(
        f"<li>{key}<span>{markup(label)}</span></li>" for key, label in draw_setting_keys(chart)
    )
    legend = f'<ul class="legend" aria-label="Lines">{keys}</ul>' if keys else ""
    return (
        f'<figure class="card plot"><figcaption><h3>{markup(chart.title)}</h3></figcaption>'
        f'<div class="wide">{draw_setting_chart(chart, WIDE)}</div>'
        f'<div class="narrow">{legend}{draw_setting_chart(chart, NARROW)}</div></figure>'
    )


def _curves_section(
    report: Report, drawn: dict[str, dict[Axis, list[Curve]]], keys: dict[str, Curve]
) -> str:
    if not keys:
        return "<p>There are no figures to draw yet.</p>"
    choices = "".join(
        f'<label><input type="radio" name="axis" id="axis-{axis}"'
        f"{' checked' if axis == 'step' else ''}> {name}</label>"
        for axis, name in AXES.items()
    )
    best = {winner.label for winner in report.winners}
    legend = "".join(
        f"<li>{draw_key(curve)}<span>{markup(curve.label)}</span>"
        f"{badge('★', 'best', 'winner') if curve.label in best else ''}</li>"
        for curve in keys.values()
    )
    main = "".join(_figure(figure, name, drawn[figure]) for figure, name in MAIN_FIGURES.items())
    more = "".join(
        _small_figure(figure, name, drawn[figure]) for figure, name in MORE_FIGURES.items()
    )
    return (
        f'<div class="curves"><fieldset class="segmented"><legend>Along</legend>{choices}'
        f'</fieldset><ul class="legend" aria-label="Curves">{legend}</ul>{main}'
        f'<details><summary>More figures</summary><div class="more">{more}</div></details></div>'
    )


def _figure(figure: str, name: str, by_axis: dict[Axis, list[Curve]]) -> str:
    if not by_axis["step"]:
        return ""
    charts = "".join(
        f'<div class="axis" data-axis="{axis}"><div class="wide">'
        f"{draw_chart(curves, axis, name, WIDE, identity=f'{figure}-{axis}-wide')}</div>"
        f'<div class="narrow">'
        f"{draw_chart(curves, axis, name, NARROW, identity=f'{figure}-{axis}-narrow')}</div></div>"
        for axis, curves in by_axis.items()
    )
    return (
        f'<figure class="card plot"><figcaption><h3>{name}</h3></figcaption>{charts}'
        f"<details><summary>{name} in numbers</summary>{_numbers(name, by_axis['step'])}</details>"
        "</figure>"
    )


def _small_figure(figure: str, name: str, by_axis: dict[Axis, list[Curve]]) -> str:
    charts = "".join(
        f'<div class="axis" data-axis="{axis}">'
        f"{draw_chart(curves, axis, name, SMALL, identity=f'{figure}-{axis}')}</div>"
        for axis, curves in by_axis.items()
        if curves
    )
    return f'<figure class="card plot">{charts}</figure>' if charts else ""


def _numbers(name: str, curves: list[Curve]) -> str:
    """The curves as a table: what each says at a few steps, for eyes and ears alike."""
    end = max((curve.line[-1][0] for curve in curves if curve.line), default=0.0)
    steps = [step for step in ticks(0.0, end, _NUM_COLUMNS) if 0 < step < end]
    steps.append(end)
    rows = [
        [markup(curve.label), *(show_loss(_value_until(curve, step)) for step in steps)]
        for curve in curves
    ]
    headers = ["Runs", *(f"step {step:,.0f}" for step in steps)]
    return f'<p class="muted">{markup(describe(curves, "step", name))}</p>' + table(
        f"{name} in numbers", headers, rows
    )


def _value_until(curve: Curve, step: float) -> float | None:
    """The newest value up to a step; None before the first and after the last."""
    if not curve.line or step > curve.line[-1][0] + 0.5:
        return None
    return next((y for x, y in reversed(curve.line) if x <= step + 0.5), None)


def _cost_section(report: Report) -> str:
    return (
        '<p class="muted">Planned figures come from the settings, by the planner’s rules: '
        "6 operations a weight and token and the attention’s own, at "
        f"{EXPECTED_MFU['cuda']:.0%} of the device’s best rate by its data sheet, on a CPU "
        f"{EXPECTED_MFU['cpu']:.0%} of the one the run measured. Measured speed and MFU "
        "are medians; memory is the device’s, on a CPU the "
        "whole process’s, libraries included.</p>" + cost_table(report)
    )
