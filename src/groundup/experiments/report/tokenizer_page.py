"""A tokenizer study as a document: sentences, a heat map with speeds, and tables."""

import datetime
from collections.abc import Callable

from groundup.experiments.report.charts import HeatMap
from groundup.experiments.report.document import Document, Figure, Section, Table, Text, Verdict
from groundup.experiments.report.text import UNKNOWN, show_bytes, slug
from groundup.experiments.tokenizer_study import Cell, TokenizerStudy

# Title, explanation, and what a cell shows; rows without anything are left out.
_TABLES: tuple[tuple[str, str, Callable[[Cell], str | None]], ...] = (
    (
        "Bytes per token",
        "How much text a token stands for: more is better, for a model then reads and generates "
        "fewer tokens.",
        lambda cell: f"{cell.bytes_per_token:.3f}",
    ),
    (
        "Away from home",
        "The same bytes per token, as a fraction of what the tokenizer learned from that very "
        "corpus, with as large a vocabulary, reaches there.",
        lambda cell: None if cell.relative_to_home is None else f"{cell.relative_to_home:.1%}",
    ),
    (
        "Vocabulary in use",
        "The fraction of all tokens that occur in the text at all.",
        lambda cell: f"{cell.vocabulary_use:.1%}",
    ),
    (
        "Encoding, MB/s of one core",
        "Text that the tokenizer has never seen, by the processor's own clock, so that other work "
        "on the machine does not count; words that it has met before are faster.",
        lambda cell: f"{cell.bytes_per_core_second / 1e6:,.0f}",
    ),
)


def tokenizer_document(
    study: TokenizerStudy, title: str, *, why: str = "", finding: str = ""
) -> Document:
    """The whole page: a row per tokenizer, a column per corpus."""
    figure = Figure("bytes_per_token", (_heat_map(study),))
    sections: list[Section] = []
    for name, lede, show in _TABLES:
        rows = []
        for tokenizer in study.tokenizers:
            cells = [study.cell(tokenizer, corpus) for corpus in study.corpora]
            shown = [show(cell) for cell in cells]
            if any(shown):
                values = (value or UNKNOWN for value in shown)
                rows.append((tokenizer, f"{cells[0].vocab_size:,}", *values))
        if rows:
            table = Table(name, ("tokenizer", "vocabulary", *study.corpora), tuple(rows), "study")
            chart = () if sections else (figure,)
            sections.append(Section(slug(name), name, (*chart, Text(lede), table)))
    measured = sum(study.cell(study.tokenizers[0], corpus).num_bytes for corpus in study.corpora)
    return Document(
        kind="tokenizer study",
        command="groundup tokenizer study",
        title=title,
        why=why,
        facts={
            "Tokenizers": str(len(study.tokenizers)),
            "Corpora": ", ".join(study.corpora),
            "Text measured": show_bytes(measured),
            "Device": study.device or UNKNOWN,
        },
        summary=f"{_describe(study)}; {datetime.date.today():%Y-%m-%d}.",
        verdicts=tuple(Verdict(text) for text in find_verdicts(study)),
        finding=finding.strip(),
        warnings=(),
        sections=tuple(sections),
    )


def _describe(study: TokenizerStudy) -> str:
    """What was measured, on which text, and where."""
    learned = _learned_sizes(study)
    num_learned = sum(map(len, learned.values()))
    num_given = len(study.tokenizers) - num_learned
    counts = [f"{num_learned} tokenizers learned from the rest"] if num_learned else []
    counts += [f"{num_given} that were given"] if num_given else []
    texts = ", ".join(
        f"{corpus} {show_bytes(study.cell(study.tokenizers[0], corpus).num_bytes)}"
        for corpus in study.corpora
    )
    device = f"; {study.device}" if study.device else ""
    return f"The last tenth of each corpus ({texts}), with {' and '.join(counts)}{device}"


def find_verdicts(study: TokenizerStudy) -> list[str]:
    """What a reader should know first: the loss away from home, and what a larger one gains."""
    verdicts = []
    abroad = [
        (1 / cell.relative_to_home - 1, cell)
        for cell in study.cells
        if cell.relative_to_home and cell.learned_from != cell.corpus
    ]
    if abroad:
        (least, near), *_, (most, far) = sorted(abroad, key=lambda pair: pair[0])
        span = (
            f"{least:.0%} to {most:.0%} more tokens than"
            if round(least, 2) > 0
            else f"{1 + least:.0%} to {1 + most:.0%} of the tokens that"
        )
        verdicts.append(
            f"Away from home a text takes {span} its own tokenizer of that size would make of it: "
            f"the least {near.corpus} with {near.tokenizer}, the most {far.corpus} with "
            f"{far.tokenizer}."
        )
    sizes = sorted(_learned_sizes(study))
    if len(sizes) > 1:
        small, large = sizes[0], sizes[-1]
        gains = [
            study.cell(_home(study, large, corpus), corpus).bytes_per_token
            / study.cell(_home(study, small, corpus), corpus).bytes_per_token
            for corpus in study.corpora
        ]
        verdicts.append(
            f"At home, a token of a vocabulary of {large:,} stands for {min(gains):.2f} to "
            f"{max(gains):.2f} times as much text as one of {small:,}."
        )
    return verdicts


def _learned_sizes(study: TokenizerStudy) -> dict[int, list[str]]:
    """The tokenizers that were learned here by the size that was asked for."""
    sizes: dict[int, list[str]] = {}
    for cell in study.cells:
        if cell.asked_size is not None:
            names = sizes.setdefault(cell.asked_size, [])
            if cell.tokenizer not in names:
                names.append(cell.tokenizer)
    return sizes


def _mean_rate(study: TokenizerStudy, tokenizer: str) -> float:
    """Bytes per second of one core over all corpora, each seen for the first time."""
    cells = [study.cell(tokenizer, corpus) for corpus in study.corpora]
    seconds = sum(cell.num_bytes / cell.bytes_per_core_second for cell in cells)
    return sum(cell.num_bytes for cell in cells) / seconds


def _heat_map(study: TokenizerStudy) -> HeatMap:
    """Bytes per token: those that were learned by their size, the given ones after them."""
    sizes = _learned_sizes(study)
    learned = [name for names in sizes.values() for name in names]
    names = learned + [name for name in study.tokenizers if name not in learned]
    table = [[study.cell(name, corpus) for corpus in study.corpora] for name in names]
    homes = {
        (row, column)
        for row, cells in enumerate(table)
        for column, cell in enumerate(cells)
        if cell.learned_from == cell.corpus
    }
    return HeatMap(
        title="Bytes per token" + ("; outlined: learned from the same corpus" if homes else ""),
        rows=tuple(_label(cells[0]) for cells in table),
        columns=tuple(study.corpora),
        values=tuple(tuple(cell.bytes_per_token for cell in cells) for cells in table),
        outlined=frozenset(homes),
        bars=tuple(_mean_rate(study, name) / 1e6 for name in names),
        bar_name="MB/s of one core",
        description="Bytes per token of every tokenizer on every corpus, and its speed.",
    )


def _label(cell: Cell) -> str:
    if cell.asked_size is None:
        return f"{cell.tokenizer} {cell.vocab_size:,}"
    is_short = cell.vocab_size < cell.asked_size
    return f"{cell.learned_from} {cell.asked_size:,}" + (
        f" (only {cell.vocab_size:,})" if is_short else ""
    )


def _home(study: TokenizerStudy, size: int, corpus: str) -> str:
    return next(
        cell.tokenizer
        for cell in study.cells
        if cell.asked_size == size and cell.learned_from == corpus
    )
