"""A report as Markdown with SVG drawings beside it, for a repository that keeps its experiments."""

import datetime
import re
from collections.abc import Sequence

from groundup.experiments.curves import AXES, curves_of
from groundup.experiments.curves_svg import draw_file
from groundup.experiments.figure_text import (
    UNKNOWN,
    show_bytes,
    show_count,
    show_duration,
    show_flops,
    show_interval,
    show_percent,
    visible,
)
from groundup.experiments.groups import (
    Group,
    common_values,
    describe_sameness,
    settings_all_unlike,
    show_setting,
)
from groundup.experiments.report import Report
from groundup.experiments.report_tables import STATES
from groundup.experiments.results import RunResult
from groundup.experiments.run_cost import ASSUMED_MFU, mean_cost

_FIGURES = {"validation_loss": "Validation loss", "loss": "Training loss"}
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&])")
_MOST_SAMPLES = 4


def render_markdown(report: Report, today: datetime.date | None = None) -> dict[str, str]:
    """The files by their paths: `<slug>.md`, and the drawings in a folder `<slug>`."""
    today = today or datetime.date.today()
    name = slug(report.title)
    drawings = _drawings(report)
    files = {f"{name}/{file}": drawing for file, (_, drawing) in drawings.items()}
    devices = sorted({str(run.environment.get("device", "")) for run in report.runs} - {""})
    parts = [f"# {_plain(report.title)}"]
    if report.why:
        parts.append(_plain(report.why))
    told = f"{len(report.runs)} runs, {len(report.groups)} settings"
    parts.append(_plain(f"{told}; {', '.join(devices) or 'device unknown'}; {today:%Y-%m-%d}."))
    parts += [_plain(verdict) for verdict in report.verdicts]
    if report.warnings:
        parts.append("\n".join(f"> - {_plain(warning)}" for warning in report.warnings))
    parts += ["## Results", _results(report)]
    if drawings:
        parts.append("## Learning curves")
        parts += [f"![{_plain(told)}]({name}/{file})" for file, (told, _) in drawings.items()]
    parts += ["## Settings that differ", _settings(report)]
    parts += ["## Cost", _cost(report)]
    samples = _samples(report)
    if samples:
        parts += ["## Samples", *samples]
    parts += ["## Environment", _environment(report)]
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


def _results(report: Report) -> str:
    headers = [
        "runs",
        f"best {report.measure_name}, mean ± 95% interval",
        f"last {report.measure_name}",
        "bits per byte",
        "training loss",
        "outcome",
    ]
    rows = []
    for group in report.groups:
        best = show_interval(group.best)
        rows.append(
            [
                _cell(group.label),
                f"**{best}** ★ best" if group.is_winner else best + _tie(group),
                show_interval(group.figure(report.measure)),
                show_interval(group.figure("bits_per_byte")),
                show_interval(group.figure("loss")),
                _outcome(report, group),
            ]
        )
    return _table(headers, rows)


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
    return _cell(", ".join(told))


def _settings(report: Report) -> str:
    usual = common_values(report.groups)
    if not usual:
        return describe_sameness(report.runs)
    unlike = settings_all_unlike(report.groups)
    rows = []
    for group in report.groups:
        cells = [_cell(group.label)]
        for name, value in usual.items():
            own = show_setting(group.differences[name]) if group.runs[0].settings else UNKNOWN
            is_usual = name in unlike or own in (show_setting(value), UNKNOWN)
            cells.append(_cell(own) if is_usual else f"**{_cell(own)}**")
        rows.append(cells)
    return _table(["runs", *(f"`{name}`" for name in usual)], rows)


def _cost(report: Report) -> str:
    headers = ["runs", "parameters", "operations", "tokens a second", "MFU", "wall clock", "memory"]
    return _table(headers, [_cost_row(group) for group in report.groups]) + (
        "\n\nMeans over seeds; in brackets what the planner expected from the settings alone, at "
        f"{ASSUMED_MFU:.0%} MFU."
    )


def _cost_row(group: Group) -> list[str]:
    cost = mean_cost([run.cost for run in group.runs])
    return [
        _cell(group.label),
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
        parts.append(f"{_plain(group.label)}, after step {newest.step:,}:")
        prompts = [*run.prompts, *[""] * len(newest.texts)]
        for prompt, text in zip(prompts, newest.texts, strict=False):
            parts.append(_fenced(prompt + text))
    return parts


def _environment(report: Report) -> str:
    names = ("device", "kernels", "torch", "python", "groundup", "git_commit")
    lines = []
    for name in names:
        values = dict.fromkeys(str(run.environment[name]) for run in report.runs if _has(run, name))
        if values:
            lines.append(f"- {name.replace('_', ' ')}: {_plain(', '.join(values))}")
    for data_id in report.data_ids:
        if data_id is not None:
            lines.append(f"- {report.data_name(data_id)}: `{data_id}`")
    for run in report.runs:
        lines += [f"- {_plain(run.name)}: {_plain(note)}" for note in run.notes]
    return "\n".join(lines) or "No run says what it ran on."


def _has(run: RunResult, name: str) -> bool:
    return run.environment.get(name) is not None


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headers, ["---", *["---:"] * (len(headers) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _fenced(text: str) -> str:
    text = visible(text)
    longest = max((len(ticks) for ticks in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def _plain(text: str) -> str:
    """Text in which nothing is markup, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(visible(text).split()))


def _cell(text: str) -> str:
    return _plain(text) or UNKNOWN
