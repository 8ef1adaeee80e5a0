"""Render a comparison as one HTML page that works offline, with plotly.js and the data inline."""

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup

from groundup.experiments.report.charts import Figure, learning_curves
from groundup.experiments.report.comparison import Comparison, run_notes
from groundup.experiments.report.tables import (
    UNKNOWN,
    Table,
    cost_table,
    runs_table,
    settings_table,
)
from groundup.planner.quantities import show_count, show_flops
from groundup.runtime import escape_controls, format_duration

_STATIC = Path(__file__).parent / "static"
_METRICS = {
    "validation_loss": "Validation loss",
    "loss": "Training loss",
    "bits_per_byte": "Bits per byte",
    "learning_rate": "Learning rate",
    "gradient_norm": "Gradient norm",
    "tokens_per_second": "Tokens per second",
}


class Chart(NamedTuple):
    """A figure with its title, which is also its accessible name."""

    title: str
    figure: Figure


Block = Table | Chart | str


class Section(NamedTuple):
    """A title with its blocks; `more` is collapsed."""

    name: str
    title: str
    blocks: Sequence[Block]
    more: Sequence[Block] = ()


def _shown(value: Any) -> str:
    """Make untrusted text valid for a page; markup is unchanged."""
    if isinstance(value, Markup):
        return value
    return escape_controls(str(value)).encode("utf-8", "backslashreplace").decode()


def render(comparison: Comparison) -> str:
    """Render the page; all untrusted text is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_STATIC),
        autoescape=True,
        finalize=_shown,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "kind": lambda block: type(block).__name__,
        # Escaped, so that the JSON cannot close its script element.
        "plot": lambda figure: Markup(json.dumps(figure, allow_nan=False).replace("<", "\\u003c")),
    }
    sections = _sections(comparison)
    scripts = ""
    if any(isinstance(block, Chart) for one in sections for block in one.blocks):
        from plotly.offline import get_plotlyjs

        own = (_STATIC / "report.js").read_text("utf-8")
        scripts = f"<script>{get_plotlyjs()}</script>\n<script>{own}</script>\n"
    return environment.get_template("report.html").render(
        page=comparison,
        facts=_facts(comparison),
        sections=sections,
        today=f"{datetime.date.today():%Y-%m-%d}",
        style=Markup((_STATIC / "report.css").read_text("utf-8")),
        scripts=Markup(scripts),
    )


def _facts(comparison: Comparison) -> dict[str, str]:
    runs = comparison.runs
    devices = dict.fromkeys(str(run.environment.get("device", "")) for run in runs)
    num_finished = sum(run.outcome.state == "finished" for run in runs)
    flops = sum(run.cost["flops"] or 0 for run in runs)
    return {
        "Runs": f"{num_finished} of {len(runs)} finished",
        "Tokens": show_count(sum(run.cost["tokens"] or 0 for run in runs)),
        "Compute": show_flops(flops) if flops else UNKNOWN,
        "Time, all runs": format_duration(sum(run.cost["seconds"] or 0 for run in runs)),
        "Device": ", ".join(filter(None, devices)) or UNKNOWN,
    }


def _sections(comparison: Comparison) -> list[Section]:
    groups, runs = comparison.groups, comparison.runs
    curves = [
        Chart(name, figure)
        for metric, name in _METRICS.items()
        if (figure := learning_curves(groups, metric, name)) is not None
    ]
    nothing: list[Block] = ["There are no metrics yet."]
    differing: list[Block] = [settings_table(groups) or "Only seeds differ."]
    return [
        Section("results", "Results", [comparison.results]),
        Section("curves", "Learning curves", curves[:2] or nothing, curves[2:]),
        Section("settings", "Settings", differing),
        Section("cost", "Cost", [cost_table(groups)]),
        Section("runs", "Runs", run_notes(runs), [runs_table(runs)]),
    ]
