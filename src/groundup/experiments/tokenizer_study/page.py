"""A tokenizer study as one page that opens offline, and as Markdown with its drawing."""

import datetime

from groundup.experiments.report.figure_text import markup, show_bytes
from groundup.experiments.report.markdown_page import slug
from groundup.experiments.report.markdown_text import cell, finding_paragraphs, plain, table
from groundup.experiments.report.page_frame import finding_aside, masthead, render_frame
from groundup.experiments.report.studies import Study
from groundup.experiments.report.tables import table as html_table
from groundup.experiments.tokenizer_study.drawing import draw_study
from groundup.experiments.tokenizer_study.study import TokenizerStudy
from groundup.experiments.tokenizer_study.words import describe, find_tables, find_verdicts

DRAWING = "bytes_per_token.svg"
_TOLD = "bytes per token of every tokenizer on every corpus, and its speed"


def render_markdown(
    study: TokenizerStudy, title: str, *, why: str = "", finding: str = ""
) -> dict[str, str]:
    """The files by their paths: `<slug>.md`, and the drawing in a folder `<slug>`."""
    name = slug(title)
    told = describe(study)
    parts = [f"# {plain(title)}", plain(why)]
    parts.append(plain(f"{told[0].upper()}{told[1:]}; {datetime.date.today():%Y-%m-%d}."))
    parts += map(plain, find_verdicts(study))
    parts += finding_paragraphs(finding)
    parts += ["## Results", f"![{_TOLD}]({name}/{DRAWING})"]
    for part in find_tables(study):
        parts += [f"### {plain(part.title)}", plain(part.lede)]
        rows = [[cell(told) for told in row.cells] for row in part.rows]
        parts.append(table([cell(header) for header in part.headers], rows))
    page = "\n\n".join(part for part in parts if part) + "\n"
    return {f"{name}.md": page, f"{name}/{DRAWING}": draw_study(study)}


def render_html(study: TokenizerStudy, title: str, *, why: str = "", finding: str = "") -> str:
    """The whole page."""
    today = datetime.date.today()
    first, *others = find_tables(study)
    drawing = (
        f'<div class="scroll map" role="region" aria-label="{_TOLD}" tabindex="0">'
        f"{draw_study(study)}</div>"
    )
    sections = {"results": (markup(first.title), drawing + _section(first))}
    sections |= {slug(part.title): (markup(part.title), _section(part)) for part in others}
    measured = sum(study.cell(study.tokenizers[0], corpus).num_bytes for corpus in study.corpora)
    facts = [
        ("Tokenizers", str(len(study.tokenizers))),
        ("Corpora", ", ".join(study.corpora)),
        ("Text measured", show_bytes(measured)),
        ("Device", study.device or "—"),
    ]
    told = " ".join(map(markup, find_verdicts(study)))
    card = f'<div class="card verdict" role="group" aria-label="Outcome"><p>{told}</p></div>'
    return render_frame(
        title,
        sections,
        opening=masthead("tokenizer study", title, why, facts, today),
        outcome=(card if told else "") + finding_aside(finding.strip()),
        command="groundup tokenizer study",
        today=today,
    )


def _section(part: Study) -> str:
    headers = [markup(header) for header in part.headers]
    rows = [[markup(told) for told in row.cells] for row in part.rows]
    lede = f'<p class="muted">{markup(part.lede)}</p>'
    return lede + html_table(markup(part.title), headers, rows, "study")
