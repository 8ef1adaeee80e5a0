"""A comparison as one HTML page that opens offline: style, plotly's script and all data inside."""

import datetime
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup

from groundup.experiments.groups import shared_settings, show_setting
from groundup.experiments.report.charts import Figure, learning_curves
from groundup.experiments.report.comparison import Comparison, run_notes
from groundup.experiments.report.tables import (
    UNKNOWN,
    Table,
    cost_table,
    environment_parts,
    runs_table,
    settings_table,
    spelled,
)
from groundup.planner.quantities import show_count, show_flops
from groundup.runtime import format_duration

_STATIC = Path(__file__).parent / "static"
_METRICS = {
    "validation_loss": "Validation loss",
    "loss": "Training loss",
    "bits_per_byte": "Bits per byte",
    "learning_rate": "Learning rate",
    "gradient_norm": "Gradient norm",
    "tokens_per_second": "Tokens per second",
}
_MOST_EARLIER = 12
# Characters that change the direction of all text after them.
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufffe\uffff")


@dataclass(frozen=True)
class Chart:
    """A figure with its title, which also describes it to those who cannot see it."""

    title: str
    figure: Figure


@dataclass(frozen=True)
class Pairs:
    """Names with their values."""

    values: Mapping[str, str]


@dataclass(frozen=True)
class Samples:
    """Texts that a model generated, each after its prompt, by step, the newest first."""

    title: str
    texts: Sequence[tuple[int, Sequence[tuple[str, str]]]]


Block = Table | Chart | Pairs | Samples | str


@dataclass(frozen=True)
class Section:
    """A title and what stands below it; folded blocks are opened when a reader wants them."""

    name: str
    title: str
    blocks: Sequence[Block]
    folded: Mapping[str, Sequence[Block]]


def visible(text: str) -> str:
    """Text that any page or terminal may hold; control characters become U+FFFD."""

    def is_shapeless(sign: str) -> bool:
        is_control = unicodedata.category(sign) in ("Cc", "Cs") and sign not in "\n\t"
        return is_control or sign in _TURNING

    return "".join("\ufffd" if is_shapeless(sign) else sign for sign in text.replace("\r\n", "\n"))


def render(comparison: Comparison) -> str:
    """The whole page; everything foreign in it is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_STATIC),
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) else visible(str(value)),
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "kind": lambda block: type(block).__name__,
        "plot": lambda figure: Markup(spelled(figure)),
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
    days = sorted({run.day for run in runs if run.day is not None})
    num_finished = sum(run.outcome.state == "finished" for run in runs)
    flops = sum(run.cost.flops or 0 for run in runs)
    all_runs = f"{len(runs)}"
    facts = {
        "Runs": all_runs if num_finished == len(runs) else f"{num_finished} of {all_runs} finished",
        "Settings compared": str(len(comparison.groups)),
        "Tokens": show_count(sum(run.cost.tokens or 0 for run in runs)),
        "Compute": show_flops(flops) if flops else UNKNOWN,
        "Time, all runs": format_duration(sum(run.cost.seconds or 0 for run in runs)),
        "Device": ", ".join(filter(None, devices)) or UNKNOWN,
    }
    if days:
        facts["Begun"] = " to ".join(dict.fromkeys((days[0], days[-1])))
    return facts


def _sections(comparison: Comparison) -> list[Section]:
    groups, runs = comparison.groups, comparison.runs
    sections = []
    for number, study in enumerate(comparison.studies, start=1):
        blocks: list[Block] = list(study.tables)
        if study.figure is not None:
            blocks.insert(1, Chart("Loss by parameters", study.figure))
        sections.append(Section(f"study-{number}", study.title, blocks, {}))
    results: list[Block] = [comparison.results]
    if comparison.figure is not None:
        results.insert(0, Chart(f"Best {comparison.measure_name}", comparison.figure))
    sections.append(Section("results", "Results", results, {}))
    curves = [
        Chart(name, figure)
        for metric, name in _METRICS.items()
        if (figure := learning_curves(groups, metric, name)) is not None
    ]
    more = {"More metrics": curves[2:]} if curves[2:] else {}
    nothing: list[Block] = ["There are no metrics yet."]
    sections.append(Section("curves", "Learning curves", curves[:2] or nothing, more))
    shared = {name: show_setting(value) for name, value in shared_settings(runs).items()}
    table = settings_table(groups)
    folded = {f"{len(shared)} settings all runs share": [Pairs(shared)]} if shared else {}
    differing: list[Block] = ["Nothing but seeds differs."] if table is None else [table]
    sections.append(Section("settings", "Settings", differing, folded))
    sections.append(Section("cost", "Cost", [cost_table(groups)], {}))
    texts = _samples(comparison)
    none: list[Block] = ["No run generated samples: set samples.every_steps."]
    sections.append(Section("samples", "Samples", texts or none, {}))
    known, differences = environment_parts(runs)
    environment: list[Block] = [Pairs(known), *([differences] if differences else [])]
    environment += run_notes(runs)
    every: Mapping[str, Sequence[Block]] = {"Every run": [runs_table(runs)]}
    sections.append(Section("environment", "Environment", environment, every))
    return sections


def _samples(comparison: Comparison) -> list[Block]:
    """The texts of each group's first run that has any, best group first."""
    found: list[Block] = []
    for group in comparison.groups:
        run = next((run for run in group.runs if run.metrics.samples), None)
        if run is not None:
            newest = [
                (sample.step, list(zip([*run.prompts, *[""] * 99], sample.texts, strict=False)))
                for sample in run.metrics.samples[::-1][: 1 + _MOST_EARLIER]
            ]
            found.append(Samples(group.label, newest))
    return found
