"""A document as one HTML page that opens offline: style, plotly's script and all data inside."""

import datetime
import json
from collections.abc import Sequence
from pathlib import Path

from groundup.experiments.report.charts import plotly_figure
from groundup.experiments.report.document import (
    Block,
    Cell,
    Document,
    Figure,
    Folded,
    Mark,
    Pairs,
    Section,
    Specimen,
    Table,
    Text,
)
from groundup.experiments.report.text import breakable, markup

_STATIC = Path(__file__).parent / "static"
_LONGEST_VALUE = 80


def render_html(document: Document) -> str:
    """The whole page."""
    today = datetime.date.today()
    links = "".join(
        f'<li><a href="#{section.name}">{markup(section.title.partition(",")[0])}</a></li>'
        for section in document.sections
    )
    facts = "".join(
        f"<div><dt>{markup(name)}</dt><dd>{markup(told)}</dd></div>"
        for name, told in document.facts.items()
    )
    lede = f'<p class="lede">{markup(document.why)}</p>' if document.why else ""
    body = "".join(map(_section, document.sections))
    scripts = _scripts() if 'class="plot-area"' in body else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:\">\n"
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{markup(document.title)} · {document.command}</title>\n"
        f"<style>\n{(_STATIC / 'report.css').read_text('utf-8')}</style>\n"
        f'</head>\n<body>\n<a class="skip-link" href="#{document.sections[0].name}">Skip to the '
        f'results</a>\n<header class="masthead"><p class="eyebrow">groundup · {document.kind} · '
        f'{today:%Y-%m-%d}</p><h1>{markup(document.title)}</h1>{lede}<dl class="facts">{facts}'
        f'</dl></header>\n<nav class="contents" aria-label="Sections"><ul>{links}</ul></nav>\n'
        f"<main>{_verdicts(document)}{_finding(document.finding)}{_warnings(document.warnings)}"
        f"{body}</main>\n"
        f"<footer><p>Written by <code>{document.command}</code> on {today:%Y-%m-%d}.</p></footer>\n"
        f"{scripts}</body>\n</html>\n"
    )


def _scripts() -> str:
    from plotly.offline import get_plotlyjs

    return (
        f"<script>{get_plotlyjs()}</script>\n"
        f"<script>{(_STATIC / 'report.js').read_text('utf-8')}</script>\n"
    )


def _section(section: Section) -> str:
    choices = "".join(
        f'<label><input type="radio" name="axis" id="axis-{axis}"'
        f"{'' if number else ' checked'}> {markup(told)}</label>"
        for number, (axis, told) in enumerate((section.choices or {}).items())
    )
    if choices:
        choices = f'<fieldset class="segmented"><legend>Along</legend>{choices}</fieldset>'
    name = section.name
    return (
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">'
        f"{markup(section.title)}</h2>{choices}{_blocks(section.blocks)}</section>"
    )


def _blocks(blocks: Sequence[Block]) -> str:
    """One after another; specimens that follow each other stand side by side."""
    parts: list[str] = []
    for number, block in enumerate(blocks):
        is_specimen = isinstance(block, Specimen)
        if is_specimen and not (number and isinstance(blocks[number - 1], Specimen)):
            parts.append('<div class="samples">')
        parts.append(_block(block))
        is_last = number + 1 == len(blocks) or not isinstance(blocks[number + 1], Specimen)
        if is_specimen and is_last:
            parts.append("</div>")
    return "".join(parts)


def _block(block: Block) -> str:
    match block:
        case Text():
            kind = "muted" if block.is_muted else ""
            return f'<p class="{kind}">{markup(block.text)}</p>'
        case Table():
            return _table(block)
        case Figure():
            return _figure(block)
        case Pairs():
            items = "".join(
                f"<div><dt>{markup(name)}</dt><dd>{markup(value[:_LONGEST_VALUE])}</dd></div>"
                for name, value in block.values.items()
            )
            return f'<dl class="pairs">{items}</dl>'
        case Specimen():
            return f'<article class="card sample">{_specimen(block)}</article>'
        case Folded():
            return (
                f"<details><summary>{markup(block.title)}</summary>{_blocks(block.blocks)}"
                f"</details>"
            )


def _table(table: Table) -> str:
    """A table that scrolls by itself."""
    title = markup(table.title)
    head = "".join(f'<th scope="col">{markup(header)}</th>' for header in table.headers)
    body = "".join(
        f'<tr><th scope="row">{_cell(row[0])}</th>'
        + "".join(f"<td>{_cell(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in table.rows
    )
    return (
        f'<div class="scroll" role="region" aria-label="{title}" tabindex="0">'
        f'<table class="{table.kind}"><caption class="visually-hidden">{title}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(cell: Cell | str) -> str:
    if isinstance(cell, str):
        return markup(cell)
    text = f"<code>{breakable(cell.text)}</code>" if cell.is_code else markup(cell.text)
    if cell.is_strong:
        text = f"<strong>{text}</strong>"
    swatch = "" if cell.style is None else f'<span class="swatch slot-{cell.style + 1}"></span>'
    note = f"<small>{markup(cell.note)}</small>" if cell.note else ""
    return f"{swatch}{text}{note}{''.join(map(_badge, cell.marks))}"


def _badge(mark: Mark) -> str:
    """A state as a sign, a word and a color, any of which suffices."""
    return (
        f'<span class="badge {mark.kind}"><span aria-hidden="true">{mark.sign}</span> '
        f"{markup(mark.text)}</span>"
    )


def _figure(figure: Figure) -> str:
    areas = []
    for chart in figure.charts:
        data = json.dumps(plotly_figure(chart), allow_nan=False).replace("<", "\\u003c")
        title = f"<h3>{markup(chart.title)}</h3>" if len(figure.charts) > 1 else ""
        told = markup(chart.description)
        areas.append(
            f'<div>{title}<div class="plot-area" role="img" aria-label="{told}"></div>'
            f'<script type="application/json">{data}</script></div>'
        )
    caption = f"<figcaption><h3>{markup(figure.title)}</h3></figcaption>" if figure.title else ""
    axis = f' data-axis="{figure.axis}"' if figure.axis else ""
    kind = "card plot axis" if figure.axis else "card plot"
    panels = f'<div class="panels">{"".join(areas)}</div>'
    return f'<figure class="{kind}"{axis}>{caption}{panels}</figure>'


def _specimen(specimen: Specimen) -> str:
    texts = "".join(
        f'<blockquote dir="auto"><b>{markup(prompt)}</b>{markup(text)}</blockquote>'
        for prompt, text in specimen.texts
    )
    earlier = "".join(f"<li>{_specimen(one)}</li>" for one in specimen.earlier)
    if earlier:
        told = f"{len(specimen.earlier)} earlier"
        earlier = f"<details><summary>{told}</summary><ol>{earlier}</ol></details>"
    title = f"<h3>{markup(specimen.title)}</h3>" if specimen.title else ""
    return f'{title}<p class="muted">{markup(specimen.note)}</p>{texts}{earlier}'


def _verdicts(document: Document) -> str:
    cards = []
    for verdict in document.verdicts:
        rest = verdict.text.removeprefix(verdict.label)
        big = (
            f'<p class="number">{markup(verdict.number)}'
            f"<small>{markup(verdict.number_name)}</small></p>"
        )
        cards.append(
            f'<div class="card verdict">{big if verdict.number else ""}'
            f"<p><strong>{markup(verdict.label)}</strong>{markup(rest)}</p></div>"
        )
    if not cards:
        return ""
    return f'<div class="verdicts" role="group" aria-label="Outcome">{"".join(cards)}</div>'


def _finding(words: str) -> str:
    """What a person makes of it, told apart from what the program says."""
    if not words:
        return ""
    return (
        '<aside class="finding" aria-labelledby="finding-title">'
        '<h2 id="finding-title">What we make of it</h2>'
        f'<p dir="auto">{markup(words)}</p>'
        '<p class="muted">Written by hand, not by the program.</p></aside>'
    )


def _warnings(warnings: Sequence[str]) -> str:
    if not warnings:
        return ""
    items = "".join(f"<li>{markup(warning)}</li>" for warning in warnings)
    return (
        '<aside class="notice" aria-labelledby="notice-title">'
        f'<h2 id="notice-title"><span aria-hidden="true">⚠</span> Read this first</h2>'
        f"<ul>{items}</ul></aside>"
    )
