"""A document as one HTML page that opens offline: style, plotly's script and all data inside."""

import datetime
import json
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from groundup.experiments.report.charts import Chart, plotly_figure
from groundup.experiments.report.document import Document, Figure, Folded
from groundup.experiments.report.text import visible

_STATIC = Path(__file__).parent / "static"


def render_html(document: Document) -> str:
    """The whole page."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_STATIC),
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) else visible(str(value)),
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "kind": lambda block: type(block).__name__,
        "plot": _plot,
        "breakable": _breakable,
    }
    blocks: list[Any] = [block for section in document.sections for block in section.blocks]
    blocks += [inner for block in blocks if isinstance(block, Folded) for inner in block.blocks]
    scripts = ""
    if any(isinstance(block, Figure) for block in blocks):
        from plotly.offline import get_plotlyjs

        scripts = (
            f"<script>{get_plotlyjs()}</script>\n"
            f"<script>{(_STATIC / 'report.js').read_text('utf-8')}</script>\n"
        )
    return environment.get_template("report.html").render(
        page=document,
        today=f"{datetime.date.today():%Y-%m-%d}",
        style=Markup((_STATIC / "report.css").read_text("utf-8")),
        scripts=Markup(scripts),
    )


def _plot(chart: Chart) -> Markup:
    """The data of a chart inside a script, which nothing in it can end."""
    return Markup(json.dumps(plotly_figure(chart), allow_nan=False).replace("<", "\\u003c"))


def _breakable(text: str) -> Markup:
    """Names of runs and paths may break between their parts."""
    shown = escape(visible(text)).replace("+", Markup("+<wbr>"))
    return shown.replace("/", Markup("/<wbr>"))
