"""What a tokenizer study says in sentences and tables; a page and Markdown dress it each."""

from collections.abc import Callable

from groundup.experiments.report.figure_text import UNKNOWN, show_bytes
from groundup.experiments.report.studies import Study, StudyRow
from groundup.experiments.tokenizer_study.study import Cell, TokenizerStudy


def describe(study: TokenizerStudy) -> str:
    """What was measured, on which text, and where."""
    learned = learned_sizes(study)
    num_learned = sum(map(len, learned.values()))
    num_given = len(study.tokenizers) - num_learned
    counts = [f"{num_learned} tokenizers learned from the rest"] if num_learned else []
    counts += [f"{num_given} that were given"] if num_given else []
    texts = ", ".join(
        f"{corpus} {show_bytes(study.cell(study.tokenizers[0], corpus).num_bytes)}"
        for corpus in study.corpora
    )
    place = f"; {study.device}" if study.device else ""
    return f"the last tenth of each corpus ({texts}), with {' and '.join(counts)}{place}"


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
    sizes = sorted(learned_sizes(study))
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


def find_tables(study: TokenizerStudy) -> list[Study]:
    """Compression, cross-compression, and speed: a row a tokenizer, a column a corpus."""
    tables = [
        _table(
            study,
            "Bytes per token",
            "How much text a token stands for: more is better, for a model then reads and writes "
            "fewer tokens.",
            lambda cell: f"{cell.bytes_per_token:.3f}",
        )
    ]
    if learned_sizes(study):
        tables.append(
            _table(
                study,
                "Away from home",
                "The same bytes per token, in parts of what the tokenizer learned from that very "
                "corpus, with as large a vocabulary, reaches there.",
                lambda cell: _share(cell.relative_to_home),
                only_learned=True,
            )
        )
    tables.append(
        _table(
            study,
            "Vocabulary in use",
            "The share of all tokens that occur in the text at all.",
            lambda cell: _share(cell.vocabulary_use),
        )
    )
    tables.append(
        _table(
            study,
            "Encoding, MB/s of one core",
            "Text that the tokenizer has never seen, by the processor's own clock, so that other "
            "work on the machine does not count; words that it has met before are faster.",
            lambda cell: f"{cell.bytes_per_core_second / 1e6:,.0f}",
        )
    )
    return tables


def learned_sizes(study: TokenizerStudy) -> dict[int, list[str]]:
    """The tokenizers that were learned here by the size that was asked for."""
    sizes: dict[int, list[str]] = {}
    for cell in study.cells:
        if cell.asked_size is not None:
            names = sizes.setdefault(cell.asked_size, [])
            if cell.tokenizer not in names:
                names.append(cell.tokenizer)
    return sizes


def _table(
    study: TokenizerStudy,
    title: str,
    lede: str,
    show: Callable[[Cell], str],
    *,
    only_learned: bool = False,
) -> Study:
    rows = []
    for name in study.tokenizers:
        cells = [study.cell(name, corpus) for corpus in study.corpora]
        if cells[0].learned_from is not None or not only_learned:
            rows.append(StudyRow((name, f"{cells[0].vocab_size:,}", *map(show, cells))))
    return Study(title, lede, ("tokenizer", "vocabulary", *study.corpora), tuple(rows))


def _home(study: TokenizerStudy, size: int, corpus: str) -> str:
    return next(
        cell.tokenizer
        for cell in study.cells
        if cell.asked_size == size and cell.learned_from == corpus
    )


def _share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1%}"
