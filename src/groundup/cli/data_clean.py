"""`groundup data clean`: documents worth learning from, without duplicates."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from groundup.cli.shared import CorpusFlags
from groundup.data.clean import CleanSettings

if TYPE_CHECKING:
    from groundup.data.clean import CleanSummary


class Arguments(CorpusFlags, CleanSettings):
    """Leave out duplicates, near duplicates and poor documents; write the others as JSON lines."""

    out: Path = Path("clean.jsonl")
    """The .jsonl file to write. A report is put beside it."""

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
            num_threads=arguments.num_threads,
            overwrite=arguments.overwrite,
            progress=progress,
            engine=engine,
        )
    _print_summary(summary, out)


def _print_summary(summary: "CleanSummary", out: Path | None) -> None:
    from groundup.cli.terminal import print_results, print_table
    from groundup.data.clean import report_path
    from groundup.planner.quantities import show_bytes
    from groundup.runtime import format_duration

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
        if removed.examples:
            notes.append((name, f"for example {removed.examples[0][:60]!r}"))
    if summary.num_passages:
        fraction = summary.num_leaked / summary.num_passages
        notes.append(("validation", f"{fraction:.1%} of its runs of 13 words are in what is kept"))
    rate = summary.num_bytes / summary.seconds / 1e6
    notes.append(("time", f"{format_duration(summary.seconds)}, {rate:,.1f} MB/s"))
    if out is not None:
        notes.append(("report", f"{report_path(out)}: counts, rules and examples"))
    print_results("", notes)
