"""A document as Markdown with pictures beside it, for a repository that keeps its experiments."""

import re
from collections.abc import Iterator

from groundup.experiments.report.document import (
    Block,
    Cell,
    Document,
    Figure,
    Folded,
    Pairs,
    Specimens,
    Table,
    Text,
)
from groundup.experiments.report.pictures import draw_picture
from groundup.experiments.report.text import UNKNOWN, fenced, paragraph, plain, slug


def render_markdown(document: Document) -> dict[str, str]:
    """The files by their paths: `<slug>.md`, and the pictures in a folder `<slug>`."""
    name = slug(document.title)
    files: dict[str, str] = {}
    parts = [f"# {plain(document.title)}", paragraph(document.why)]
    parts.append(plain(document.summary))
    parts += [paragraph(verdict.text) for verdict in document.verdicts]
    parts += _finding(document.finding)
    parts.append("\n".join(f"> - {plain(warning)}" for warning in document.warnings))
    for section in document.sections:
        parts.append(f"## {plain(section.title)}")
        for block in section.blocks:
            parts += _render(block, name, files)
    page = "\n\n".join(part for part in parts if part) + "\n"
    return {f"{name}.md": page, **files}


def _render(block: Block, name: str, files: dict[str, str]) -> Iterator[str]:
    match block:
        case Text():
            yield paragraph(block.text)
        case Table():
            yield _table(block)
        case Figure():
            file = f"{name}/{block.name}.svg"
            files[file] = draw_picture(block.charts)
            told = " ".join(chart.description for chart in block.charts)
            yield f"![{plain(told)}]({file})"
        case Pairs():
            yield fenced("\n".join(f"{key}: {value}" for key, value in block.values.items()))
        case Specimens():
            for one in block.specimens:
                yield f"{plain(one.title)}{', ' if one.note else ''}{plain(one.note)}:"
                yield from (fenced(prompt + text) for prompt, text in one.texts)
        case Folded() if not block.is_page_only:
            inside = "\n\n".join(part for one in block.blocks for part in _render(one, name, files))
            yield f"<details>\n<summary>{plain(block.title)}</summary>\n\n{inside}\n\n</details>"


def _table(table: Table) -> str:
    """The first column is left-aligned, the others right; marks have a column of their own."""
    has_marks = any(isinstance(row[0], Cell) and row[0].marks for row in table.rows)
    headers = [*map(plain, table.headers), *([""] if has_marks else [])]
    lines = [headers, ["---", *["---:"] * (len(headers) - 1)]]
    for row in table.rows:
        marks = row[0].marks if isinstance(row[0], Cell) else ()
        told = plain(", ".join(f"{mark.sign} {mark.text}" for mark in marks))
        lines.append([*map(_cell, row), *([told] if has_marks else [])])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(cell: Cell | str) -> str:
    if isinstance(cell, str):
        return plain(cell) or UNKNOWN
    text = plain(cell.text) or UNKNOWN
    if cell.is_strong:
        text = f"**{text}**"
    return f"{text} ({plain(cell.note)})" if cell.note else text


def _finding(finding: str) -> list[str]:
    """Marked as a person's; blank lines part paragraphs."""
    first, *others = re.split(r"\n\s*\n", finding.strip())
    if not first:
        return []
    return [f"**What we make of it** (written by hand): {plain(first)}", *map(paragraph, others)]
