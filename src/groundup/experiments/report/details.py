"""The end of a report's page: what the models wrote, what they ran on, every run by itself."""

import shlex
from collections.abc import Mapping
from typing import Any

from groundup.config import flatten
from groundup.experiments.report.contents import Report, list_names
from groundup.experiments.report.curves import thin_evenly
from groundup.experiments.report.figure_text import UNKNOWN, breakable, markup, show_count
from groundup.experiments.report.tables import state_badge, table
from groundup.experiments.results.groups import Group, show_setting
from groundup.experiments.results.run_result import RunResult
from groundup.runs.metrics import Sample

_MOST_GROUPS_OPEN = 6
_MOST_SAMPLES = 12
_TOLD_ELSEWHERE = ("command", "started", "seed", "resumes")


def samples_section(report: Report) -> str:
    """The newest texts of each group, best group first, with the earlier ones folded away."""
    writing = [group for group in report.groups if any(run.samples for run in group.runs)]
    if not writing:
        return "<p>No run wrote samples: <code>samples.every_steps</code> makes them.</p>"
    cards = [_sample_card(group) for group in writing]
    shown = f'<div class="samples">{"".join(cards[:_MOST_GROUPS_OPEN])}</div>'
    if len(cards) <= _MOST_GROUPS_OPEN:
        return shown
    rest = "".join(cards[_MOST_GROUPS_OPEN:])
    return (
        f"{shown}<details><summary>Samples of {len(cards) - _MOST_GROUPS_OPEN} more</summary>"
        f'<div class="samples">{rest}</div></details>'
    )


def environment_section(report: Report) -> str:
    """What all runs ran on, what differs between them, and the runs one by one."""
    described = [run for run in report.runs if run.environment]
    parts = []
    if described:
        shared, differing = _split(described)
        items = "".join(
            f"<div><dt>{markup(name)}</dt><dd>{markup(show_setting(value))}</dd></div>"
            for name, value in shared.items()
        )
        parts.append(f'<dl class="pairs">{items}</dl>')
        if differing:
            rows = [
                [markup(name), markup(value), breakable(list_names(runs))]
                for name, by_value in differing.items()
                for value, runs in by_value.items()
            ]
            parts.append("<h3>What differs between runs</h3>")
            headers = ["What", "Value", "Runs"]
            parts.append(table("Environments that differ", headers, rows, "differing"))
    else:
        parts.append("<p>No run says what it ran on.</p>")
    parts.append("<h3>Every run</h3>")
    parts.append(_runs_table(report))
    return "".join(parts)


def _sample_card(group: Group) -> str:
    run = next(run for run in group.runs if run.samples)
    newest, *earlier = reversed(run.samples)
    kept = [earlier[place] for place in thin_evenly(len(earlier), _MOST_SAMPLES)]
    before = "".join(
        f"<li><h4>Step {sample.step:,}</h4>{_texts(sample, run)}</li>" for sample in kept
    )
    folded = (
        f"<details><summary>{len(kept)} earlier</summary><ol>{before}</ol></details>"
        if kept
        else ""
    )
    return (
        f'<article class="card sample"><h3>{markup(group.label)}</h3>'
        f'<p class="muted">after step {newest.step:,}</p>{_texts(newest, run)}{folded}</article>'
    )


def _texts(sample: Sample, run: RunResult) -> str:
    prompts = run.prompts
    texts = []
    for place, text in enumerate(sample.texts):
        prompt = prompts[place] if place < len(prompts) else ""
        texts.append(f'<blockquote dir="auto"><b>{markup(prompt)}</b>{markup(text)}</blockquote>')
    return "".join(texts)


def _split(runs: list[RunResult]) -> tuple[dict[str, Any], dict[str, dict[str, list[str]]]]:
    """What all environments say alike; and what they do not, with the runs that say so."""
    flat = [_described(run.environment) for run in runs]
    names = dict.fromkeys(name for one in flat for name in one)
    shared: dict[str, Any] = {}
    differing: dict[str, dict[str, list[str]]] = {}
    for name in names:
        values = [one.get(name, UNKNOWN) for one in flat]
        if all(value == values[0] for value in values):
            shared[name] = values[0]
        else:
            for run, value in zip(runs, values, strict=True):
                differing.setdefault(name, {}).setdefault(show_setting(value), []).append(run.name)
    return shared, differing


def _described(environment: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flatten(environment) if name not in _TOLD_ELSEWHERE}


def _runs_table(report: Report) -> str:
    headers = ["Run", "Outcome", "Seed", "Steps", "Tokens", "Began", "Folder and command"]
    rows = []
    for run in report.runs:
        notes = "".join(f"<small>{markup(note)}</small>" for note in run.notes)
        rows.append(
            [
                breakable(run.name),
                f"{state_badge(run.outcome.state)}<small>{markup(run.outcome.sentence)}</small>"
                f"{notes}",
                UNKNOWN if run.seed is None else str(run.seed),
                f"{run.num_steps_done:,}",
                show_count(run.cost.tokens),
                markup(str(run.environment.get("started", UNKNOWN)).replace("T", " ")),
                f"<code>{breakable(run.path)}</code><code>{breakable(_command(run))}</code>",
            ]
        )
    return table("Every run", headers, rows, "runs")


def _command(run: RunResult) -> str:
    command = run.environment.get("command")
    if not isinstance(command, list) or not command:
        return ""
    words = [str(word) for word in command]
    program = words[0].rpartition("/")[2]
    is_module = program == "__main__.py"
    return shlex.join(["groundup" if is_module else program, *words[1:]])
