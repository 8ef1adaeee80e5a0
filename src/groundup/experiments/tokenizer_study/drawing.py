"""Bytes per token as a map of tokenizers and corpora, and beside every row how fast it encodes."""

from collections.abc import Sequence
from typing import NamedTuple

from groundup.experiments.report.curves_svg import STYLE_FILE
from groundup.experiments.report.figure_text import markup, shorten
from groundup.experiments.tokenizer_study.study import Cell, TokenizerStudy
from groundup.experiments.tokenizer_study.words import learned_sizes

_WIDTH, _ROW, _GROUP, _HEAD, _FOOT = 880, 30, 34, 40, 44
_LEFT, _BARS, _RIGHT = 176, 190, 20
_LONGEST_LABEL, _LETTER_WIDTH = 22, 7

# As strong as the figures upon it can still be read, on light and dark paper.
_FAINTEST, _STRONGEST = 0.05, 0.46
_STYLE = (
    ".chart { --plot-figure: #181c1a; }"
    "@media (prefers-color-scheme: dark) { .chart { --plot-figure: #e7ebe8; } }"
    ".chart .heat { fill: var(--slot-1); }"
    ".chart .home { fill: none; stroke: var(--slot-1); stroke-width: 2; }"
    ".chart .speed { fill: var(--slot-3); fill-opacity: 0.55; }"
    ".chart text.figure { fill: var(--plot-figure); text-anchor: middle; }"
    ".chart text.row { fill: var(--plot-figure); text-anchor: end; }"
    ".chart text.beside { fill: var(--plot-figure); }"
    # On a page it is as wide as can be read, and scrolls by itself where that is too wide.
    ".map .chart { display: block; min-width: 44rem; }"
    "@media print { .chart { --plot-figure: #181c1a; } }"
)


class _Group(NamedTuple):
    title: str
    rows: list[tuple[str, str]]
    """The label of each tokenizer, and its name in the study."""


def draw_study(study: TokenizerStudy) -> str:
    """The whole drawing, readable as a file of its own or inside a page."""
    groups = _groups(study)
    num_rows = sum(len(group.rows) for group in groups)
    height = _HEAD + _GROUP * len(groups) + _ROW * num_rows + _FOOT
    told = markup(f"bytes per token and speed of {num_rows} tokenizers on {_list(study.corpora)}")
    parts = [
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'role="img" aria-label="{told}">',
        f"<style>{STYLE_FILE.read_text('utf-8')}{_STYLE}</style>",
        f'<rect class="paper" width="{_WIDTH}" height="{height}" rx="8"/>',
        _heads(study),
    ]
    y = _HEAD
    for group in groups:
        parts.append(f'<text class="name start" x="20" y="{y + 22}">{markup(group.title)}</text>')
        y += _GROUP
        for label, name in group.rows:
            parts.append(_row(study, label, name, y))
            y += _ROW
    parts.append(_foot(study, y))
    return "".join(parts) + "</svg>\n"


def mean_rate(study: TokenizerStudy, tokenizer: str) -> float:
    """Bytes a second of one core over all corpora, each seen for the first time."""
    cells = [study.cell(tokenizer, corpus) for corpus in study.corpora]
    seconds = sum(cell.num_bytes / cell.bytes_per_core_second for cell in cells)
    return sum(cell.num_bytes for cell in cells) / seconds


def _groups(study: TokenizerStudy) -> list[_Group]:
    """Those that were learned by their size, the given ones after them."""
    groups = []
    sizes = learned_sizes(study)
    for size, names in sizes.items():
        rows = [(_learned_label(study.cell(name, study.corpora[0])), name) for name in names]
        groups.append(_Group(f"{size:,} tokens, learned from", rows))
    learned = {name for names in sizes.values() for name in names}
    given = [name for name in study.tokenizers if name not in learned]
    if given:
        rows = [
            (f"{name} {study.cell(name, study.corpora[0]).vocab_size:,}", name) for name in given
        ]
        groups.append(_Group("Given", rows))
    return groups


def _learned_label(cell: Cell) -> str:
    is_short = cell.asked_size is not None and cell.vocab_size < cell.asked_size
    return f"{cell.learned_from}{f' (only {cell.vocab_size:,})' if is_short else ''}"


def _column(study: TokenizerStudy) -> float:
    return (_WIDTH - _LEFT - _BARS - _RIGHT) / len(study.corpora)


def _heads(study: TokenizerStudy) -> str:
    width = _column(study)
    longest = max(4, int(width / _LETTER_WIDTH))
    names = "".join(
        f'<text class="x" x="{_LEFT + width * (place + 0.5):.1f}" y="46">'
        f"{markup(shorten(corpus, longest))}</text>"
        for place, corpus in enumerate(study.corpora)
    )
    bars = _WIDTH - _RIGHT - _BARS + 24
    return (
        f'<text class="name start" x="{_LEFT}" y="24">Bytes per token</text>{names}'
        f'<text class="name start" x="{bars}" y="24">MB/s of one core</text>'
    )


def _row(study: TokenizerStudy, label: str, name: str, y: int) -> str:
    width = _column(study)
    parts = [
        f'<text class="row" x="{_LEFT - 12}" y="{y + 19}">'
        f"{markup(shorten(label, _LONGEST_LABEL))}</text>"
    ]
    for place, corpus in enumerate(study.corpora):
        cell = study.cell(name, corpus)
        x, strength = _LEFT + width * place, _strength(study, cell.bytes_per_token)
        box = f'x="{x + 2:.1f}" y="{y + 2}" width="{width - 4:.1f}" height="{_ROW - 4}" rx="4"'
        parts.append(
            f"<g><title>{markup(f'{name} on {corpus}: {cell.bytes_per_token:.3f}')}</title>"
            f'<rect class="heat" fill-opacity="{strength:.3f}" {box}/>'
            f'<text class="figure" x="{x + width / 2:.1f}" y="{y + 19}">'
            f"{cell.bytes_per_token:.2f}</text>"
        )
        if cell.learned_from == corpus:
            parts.append(f'<rect class="home" {box}/>')
        parts.append("</g>")
    rate = mean_rate(study, name)
    fastest = max(mean_rate(study, other) for other in study.tokenizers)
    x, length = _WIDTH - _RIGHT - _BARS + 24, (_BARS - 24 - 44) * rate / fastest
    parts.append(
        f'<rect class="speed" x="{x}" y="{y + 7}" width="{length:.1f}" height="16" rx="3"/>'
        f'<text class="beside" x="{x + length + 7:.1f}" y="{y + 19}">{rate / 1e6:,.0f}</text>'
    )
    return "".join(parts)


def _foot(study: TokenizerStudy, y: int) -> str:
    if not learned_sizes(study):
        return ""
    return (
        f'<rect class="home" x="{_LEFT + 2}" y="{y + 15}" width="22" height="14" rx="3"/>'
        f'<text x="{_LEFT + 34}" y="{y + 26}">at home: learned from the same corpus</text>'
    )


def _strength(study: TokenizerStudy, value: float) -> float:
    values = [cell.bytes_per_token for cell in study.cells]
    low, high = min(values), max(values)
    share = (value - low) / (high - low) if high > low else 0.5
    return _FAINTEST + share * (_STRONGEST - _FAINTEST)


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
