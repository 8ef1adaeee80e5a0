"""`groundup data clean`: documents worth learning from, without duplicates."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from groundup.cli.shared import CorpusFlags
from groundup.data.clean.settings import CleanSettings

if TYPE_CHECKING:
    from groundup.data.clean import CleanSummary


class Arguments(CorpusFlags, CleanSettings):
    """Leave out duplicates, near duplicates and poor documents; write the others as JSON lines."""

    out: Path = Path("clean.jsonl")
    """The file to write: .jsonl, also packed as .gz, .zst or .xz. A report is put beside it."""

    validation: tuple[str, ...] = ()
    """Validation text, named as FILES: the report says how much of it stands in what is kept."""

    dry_run: bool = False
    """Count only, and write nothing."""

    overwrite: bool = False
    """Replace files that are already there."""


def run(arguments: Arguments) -> None:
    """Clean and print what came of it."""
    from groundup.cli.terminal import progress_bar
    from groundup.data.clean import clean

    out = None if arguments.dry_run else arguments.out
    settings = {name: getattr(arguments, name) for name in CleanSettings.model_fields}
    with arguments.connect() as engine, progress_bar("cleaning") as progress:
        summary = clean(
            arguments.files,
            out,
            CleanSettings(**settings),
            validation=arguments.validation,
            **arguments.reading,
            on_error=arguments.on_error,
            num_threads=arguments.num_threads,
            overwrite=arguments.overwrite,
            progress=progress,
            engine=engine,
        )
    _print_summary(summary, out)


def _print_summary(summary: "CleanSummary", out: Path | None) -> None:
    from groundup.cli.terminal import print_results, print_table
    from groundup.data.clean.cleaning import report_path
    from groundup.planner.quantities import show_bytes
    from groundup.runtime import count_of, format_duration

    counts = [("read", summary.num_documents, summary.num_bytes)]
    for name, removed in summary.removed.items():
        counts.append((name, removed.num_documents, removed.num_bytes))
    counts.append(("kept", summary.kept_documents, summary.kept_bytes))
    whole = max(summary.num_bytes, 1)
    rows = [
        (name, f"{documents:,}", show_bytes(size), f"{size / whole:.1%}")
        for name, documents, size in counts
    ]
    title = "counted, nothing written" if out is None else f"wrote {shlex.quote(str(out))}"
    print_table(title, ("", "documents", "text", "of the text"), rows)
    notes = []
    for name, removed in summary.removed.items():
        for example in removed.examples[:1]:
            where = f"{example['source']} document {example['document']:,}"
            if "like" in example:
                like = example["like"]
                where += f", as {like['source']} document {like['document']:,}"
            notes.append((name, f"{removed.rule}: {where}: {example['text'][:60]!r}"))
    if summary.validation is not None:
        found = summary.validation
        fraction = found["passages_in_training"] / max(found["passages"], 1)
        documents = count_of(found["documents"], "document")
        text = f"{found['documents_in_training']:,} of {documents} stand in what is kept with half "
        text += f"of their passages or more; {fraction:.1%} of all passages of "
        notes.append(("validation", f"{text}{found['passage_words']} words do"))
    rate = summary.num_bytes / summary.seconds / 1e6
    notes.append(("time", f"{format_duration(summary.seconds)}, {rate:,.1f} MB/s"))
    if out is not None:
        notes.append(("report", f"{report_path(out)}: counts, rules and examples"))
    print_results("", notes)
