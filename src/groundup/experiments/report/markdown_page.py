"""A report as Markdown with SVG drawings beside it, for a repository that keeps its experiments."""

import datetime
import re

from groundup.experiments.report.contents import Report, run_notes
from groundup.experiments.report.curves import AXES, curves_of
from groundup.experiments.report.curves_by_setting import describe
from groundup.experiments.report.curves_by_setting_svg import draw_setting_file
from groundup.experiments.report.curves_svg import draw_file
from groundup.experiments.report.figure_text import (
    UNKNOWN,
    show_bytes,
    show_count,
    show_duration,
    show_flops,
    show_interval,
    show_percent,
    visible,
)
from groundup.experiments.report.markdown_text import (
    cell,
    fenced,
    finding_paragraphs,
    paragraph,
    plain,
    table,
)
from groundup.experiments.report.studies import Study
from groundup.experiments.report.tables import STATES, describe_shared
from groundup.experiments.results.groups import (
    Group,
    common_values,
    describe_sameness,
    settings_without_usual,
    shared_settings,
    show_setting,
)
from groundup.experiments.results.run_cost import mean_cost
from groundup.experiments.results.run_result import RunResult
from groundup.planner.duration import EXPECTED_MFU

_FIGURES = {"validation_loss": "Validation loss", "loss": "Training loss"}
_MOST_SAMPLES = 4


def render_markdown(report: Report) -> dict[str, str]:
    """The files by their paths: `<slug>.md`, and the drawings in a folder `<slug>`."""
    name = slug(report.title)
    drawings = _drawings(report)
    files = {f"{name}/{file}": drawing for file, (_, drawing) in drawings.items()}
    devices = sorted({str(run.environment.get("device", "")) for run in report.runs} - {""})
    parts = [f"# {plain(report.title)}"]
    if report.why:
        parts.append(paragraph(report.why))
    num_runs, num_groups = len(report.runs), len(report.groups)
    told = "one run" if num_runs == 1 else f"{num_runs} runs of {num_groups} settings"
    days = report.days or f"{datetime.date.today():%Y-%m-%d}"
    told = f"{told}; {', '.join(devices) or 'device unknown'}; {days}."
    parts.append(plain(told[0].upper() + told[1:]))
    parts += map(paragraph, report.verdicts)
    parts += finding_paragraphs(report.finding)
    if report.warnings:
        parts.append("\n".join(f"> - {plain(warning)}" for warning in report.warnings))
    for place, study in enumerate(report.studies, start=1):
        parts += [f"## {plain(study.title)}", plain(study.lede), _study(study)]
        if study.chart:
            parts.append(_image(f"{name}/study_{place}.svg", describe(study.chart)))
            files[f"{name}/study_{place}.svg"] = draw_setting_file(study.chart)
    parts.append("## Results")
    if report.chart:
        file = f"{name}/{slug(report.chart.title)}.svg"
        parts.append(_image(file, describe(report.chart)))
        files[file] = draw_setting_file(report.chart)
    parts.append(_results(report))
    if drawings:
        parts.append("## Learning curves")
        parts += [_image(f"{name}/{file}", told) for file, (told, _) in drawings.items()]
    parts += ["## Settings that differ", _settings(report)]
    if shared := shared_settings(report.runs):
        listed = "\n".join(f"{name}: {show_setting(value)}" for name, value in shared.items())
        parts.append(_folded(describe_shared(report), fenced(listed)))
    parts += ["## Cost", _cost(report)]
    samples = _samples(report)
    if samples:
        parts += ["## Samples", *samples]
    parts += ["## Environment", _environment(report), _runs(report)]
    files[f"{name}.md"] = "\n\n".join(parts) + "\n"
    return files


def slug(title: str) -> str:
    """A title as a file name."""
    words = re.findall(r"[a-z0-9]+", visible(title).lower())
    return "_".join(words)[:60].strip("_") or "report"


def _drawings(report: Report) -> dict[str, tuple[str, str]]:
    """File name to (what it shows, SVG)."""
    drawings = {}
    for figure, told in _FIGURES.items():
        for axis, curves in curves_of(report.groups, figure).items():
            if any(curve.line for curve in curves):
                file = f"{figure}_by_{axis}.svg"
                drawings[file] = (
                    f"{told} by {AXES[axis].lower()}",
                    draw_file(curves, axis, told),
                )
    return drawings


def _image(path: str, told: str) -> str:
    return f"![{plain(told)}]({path})"


def _study(study: Study) -> str:
    rows = []
    for row in study.rows:
        marks = ", ".join(f"{mark.sign} {mark.text}" for mark in row.marks)
        rows.append([*map(cell, row.cells), plain(marks)])
    return table([*(header.lower() for header in study.headers), ""], rows)


def _results(report: Report) -> str:
    headers = [
        "runs",
        f"best {report.measure_name}, mean ± 95% interval",
        f"last {report.measure_name}",
        "bits per byte at the best",
        "training loss",
        "outcome",
    ]
    rows = []
    for group in report.groups:
        best = show_interval(group.best)
        rows.append(
            [
                cell(group.label),
                f"**{best}** ★ best" if group.is_winner else best + _tie(group),
                show_interval(group.figure(report.measure)),
                show_interval(group.figure_at_best("bits_per_byte")),
                show_interval(group.figure("loss")),
                _outcome(report, group),
            ]
        )
    return table(headers, rows)


def _tie(group: Group) -> str:
    return " ≈ not told apart" if "tied" in group.marks else ""


def _outcome(report: Report, group: Group) -> str:
    states = [run.outcome.state for run in group.runs]
    told = [
        f"{sign} {word}" + (f" {states.count(state)} of {len(states)}" if len(states) > 1 else "")
        for state, (sign, word) in STATES.items()
        if state in states
    ]
    if len(report.data_ids) > 1:
        told.append(report.data_name(group.data_id))
    return cell(", ".join(told))


def _settings(report: Report) -> str:
    usual = common_values(report.groups)
    if not usual:
        return describe_sameness(report.runs)
    without_usual = settings_without_usual(report.groups)
    rows = []
    for group in report.groups:
        cells = [cell(group.label)]
        for name, value in usual.items():
            own = show_setting(group.differences[name]) if group.runs[0].settings else UNKNOWN
            is_usual = name in without_usual or own in (show_setting(value), UNKNOWN)
            cells.append(cell(own) if is_usual else f"**{cell(own)}**")
        rows.append(cells)
    return table(["runs", *(f"`{name}`" for name in usual)], rows)


def _cost(report: Report) -> str:
    headers = ["runs", "parameters", "operations", "tokens a second", "MFU", "wall clock", "memory"]
    return table(headers, [_cost_row(group) for group in report.groups]) + (
        "\n\nMeans over seeds; in brackets what the planner makes of the settings and, for the "
        "wall clock, of the tokens read, at "
        f"{EXPECTED_MFU['cuda']:.0%} of the device's best rate by its data sheet, on a CPU "
        f"{EXPECTED_MFU['cpu']:.0%} of the one the run measured."
    )


def _cost_row(group: Group) -> list[str]:
    cost = mean_cost([run.cost for run in group.counted or group.runs])
    return [
        cell(group.label),
        show_count(cost.num_parameters),
        show_flops(cost.flops),
        _against(show_count(cost.tokens_per_second), show_count(cost.planned_tokens_per_second)),
        show_percent(cost.mfu),
        _against(show_duration(cost.seconds), show_duration(cost.planned_seconds)),
        _against(show_bytes(cost.memory_bytes), show_bytes(cost.planned_bytes)),
    ]


def _against(measured: str, planned: str) -> str:
    return measured if planned == UNKNOWN else f"{measured} ({planned})"


def _samples(report: Report) -> list[str]:
    parts = []
    writing = [group for group in report.groups if any(run.samples for run in group.runs)]
    for group in writing[:_MOST_SAMPLES]:
        run = next(run for run in group.runs if run.samples)
        newest = run.samples[-1]
        parts.append(f"{plain(group.label)}, after step {newest.step:,}:")
        prompts = [*run.prompts, *[""] * len(newest.texts)]
        for prompt, text in zip(prompts, newest.texts, strict=False):
            parts.append(fenced(prompt + text))
    return parts


def _environment(report: Report) -> str:
    names = ("device", "kernels", "torch", "python", "groundup", "git_commit")
    lines = []
    for name in names:
        values = dict.fromkeys(str(run.environment[name]) for run in report.runs if _has(run, name))
        if values:
            lines.append(f"- {name.replace('_', ' ')}: {plain(', '.join(values))}")
    for data_id in report.data_ids:
        if data_id is not None:
            lines.append(f"- {report.data_name(data_id)}: `{data_id}`")
    lines += [f"- {plain(note)}" for note in run_notes(report.runs)]
    return "\n".join(lines) or "No run says what it ran on."


def _runs(report: Report) -> str:
    """Every run and how it ended."""
    headers = ["run", "seed", "steps", "tokens", "wall clock", "outcome"]
    rows = []
    for run in report.runs:
        sign, _ = STATES[run.outcome.state]
        seed = UNKNOWN if run.seed is None else str(run.seed)
        counts = [f"{run.num_steps_done:,}", show_count(run.cost.tokens)]
        told = plain(f"{sign} {run.outcome.sentence}")
        rows.append([cell(run.name), seed, *counts, show_duration(run.cost.seconds), told])
    return _folded("Every run", table(headers, rows))


def _folded(title: str, content: str) -> str:
    return f"<details>\n<summary>{title}</summary>\n\n{content}\n\n</details>"


def _has(run: RunResult, name: str) -> bool:
    return run.environment.get(name) is not None
