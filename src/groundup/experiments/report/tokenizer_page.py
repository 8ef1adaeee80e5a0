"""A tokenizer study as a document: sentences, a chart for each corpus, and tables."""

import datetime
from collections.abc import Callable

from groundup.experiments.report.charts import NUM_STYLES, Chart, Line
from groundup.experiments.report.document import Document, Figure, Section, Table, Text, Verdict
from groundup.experiments.report.text import UNKNOWN, slug
from groundup.experiments.tokenizer_study import Cell, TokenizerStudy
from groundup.planner.quantities import show_bytes

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
            charts = tuple(_chart(study, corpus) for corpus in study.corpora)
            figure = () if sections else (Figure("bytes_per_token", charts),)
            sections.append(Section(slug(name), name, (*figure, Text(lede), table)))
    sizes = {corpus: study.cell(study.tokenizers[0], corpus).num_bytes for corpus in study.corpora}
    num_learned = len({cell.tokenizer for cell in study.cells if cell.asked_size is not None})
    num_given = len(study.tokenizers) - num_learned
    counts = [f"{num_learned} tokenizers learned from the rest"] if num_learned else []
    counts += [f"{num_given} that were given"] if num_given else []
    texts = ", ".join(f"{corpus} {show_bytes(size)}" for corpus, size in sizes.items())
    device = f"; {study.device}" if study.device else ""
    return Document(
        kind="tokenizer study",
        command="groundup tokenizer study",
        title=title,
        why=why,
        facts={
            "Tokenizers": str(len(study.tokenizers)),
            "Corpora": ", ".join(study.corpora),
            "Text measured": show_bytes(sum(sizes.values())),
            "Device": study.device or UNKNOWN,
        },
        summary=(
            f"The last tenth of each corpus ({texts}), with {' and '.join(counts)}{device}; "
            f"{datetime.date.today():%Y-%m-%d}."
        ),
        verdicts=tuple(Verdict(text) for text in find_verdicts(study)),
        finding=finding.strip(),
        warnings=(),
        sections=tuple(sections),
    )


def find_verdicts(study: TokenizerStudy) -> list[str]:
    """What a reader should know first: the loss away from home, and what a larger one gains."""
    verdicts = []
    abroad = [
        (1 / cell.relative_to_home - 1, cell)
        for cell in study.cells
        if cell.relative_to_home and not cell.is_home
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
    homes = {(cell.asked_size or 0, cell.corpus): cell for cell in study.cells if cell.is_home}
    if homes and min(homes)[0] < max(homes)[0]:
        small, large = min(homes)[0], max(homes)[0]
        gains = [
            homes[large, corpus].bytes_per_token / homes[small, corpus].bytes_per_token
            for corpus in study.corpora
        ]
        verdicts.append(
            f"At home, a token of a vocabulary of {large:,} stands for {min(gains):.2f} to "
            f"{max(gains):.2f} times as much text as one of {small:,}."
        )
    return verdicts


def _chart(study: TokenizerStudy, corpus: str) -> Chart:
    """One corpus: a line for each that tokenizers learned from, and a point for each given one."""
    points: dict[str, list[tuple[float, float]]] = {}
    for cell in study.cells:
        if cell.corpus == corpus:
            label = cell.tokenizer if cell.learned_from is None else f"from {cell.learned_from}"
            points.setdefault(label, []).append((float(cell.vocab_size), cell.bytes_per_token))
    lines = [
        Line(label, tuple(sorted(found)), number if number < NUM_STYLES else None)
        for number, (label, found) in enumerate(points.items())
    ]
    told = ", ".join(f"{line.label} up to {max(dict(line.points).values()):.3f}" for line in lines)
    return Chart(
        f"Bytes per token of {corpus}",
        "vocabulary size",
        "Bytes per token",
        tuple(lines),
        description=f"Bytes per token of {corpus} by vocabulary size: {told}.",
        is_log=True,
    )
