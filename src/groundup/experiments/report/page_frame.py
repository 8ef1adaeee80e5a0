"""What every page has around its sections: head, title, facts, ways to the sections, who wrote it.

Style and drawings are inside, there is no script, and nothing is fetched.
"""

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path

from groundup.experiments.report.curves_svg import STYLE_FILE
from groundup.experiments.report.figure_text import markup

_PAGE_STYLE = Path(__file__).parent / "static" / "report.css"


def render_frame(
    title: str,
    sections: Mapping[str, tuple[str, str]],
    *,
    opening: str,
    outcome: str,
    command: str,
    today: datetime.date,
) -> str:
    """A whole page; sections are markup, a title and its content each, by the names of anchors."""
    links = "".join(
        f'<li><a href="#{name}">{told.partition(",")[0]}</a></li>'
        for name, (told, _) in sections.items()
    )
    body = "".join(
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{told}</h2>'
        f"{content}</section>"
        for name, (told, content) in sections.items()
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n"
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{markup(title)} · {command}</title>\n"
        f"<style>\n{_PAGE_STYLE.read_text('utf-8')}\n{STYLE_FILE.read_text('utf-8')}</style>\n"
        '</head>\n<body>\n<a class="skip-link" href="#results">Skip to the results</a>\n'
        f"{opening}\n"
        f'<nav class="contents" aria-label="Sections"><ul>{links}</ul></nav>\n'
        f"<main>{outcome}{body}</main>\n"
        f"<footer><p>Written by <code>{command}</code> on {today:%Y-%m-%d}.</p></footer>\n"
        "</body>\n</html>\n"
    )


def masthead(
    kind: str, title: str, why: str, facts: Sequence[tuple[str, str]], today: datetime.date
) -> str:
    """The title, the question, and a few figures about the whole."""
    items = "".join(f"<div><dt>{name}</dt><dd>{markup(told)}</dd></div>" for name, told in facts)
    lede = f'<p class="lede">{markup(why)}</p>' if why else ""
    return (
        f'<header class="masthead"><p class="eyebrow">groundup · {kind} · {today:%Y-%m-%d}</p>'
        f'<h1>{markup(title)}</h1>{lede}<dl class="facts">{items}</dl></header>'
    )


def finding_aside(words: str) -> str:
    """What a person makes of it, told apart from what the program says."""
    if not words:
        return ""
    return (
        '<aside class="finding" aria-labelledby="finding-title">'
        '<h2 id="finding-title">What we make of it</h2>'
        f'<p dir="auto">{markup(words)}</p>'
        '<p class="muted">Written by hand, not by the program.</p></aside>'
    )
