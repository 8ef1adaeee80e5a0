"""`groundup data clean`: documents worth learning from, without duplicates."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tyro.conf import Positional

from groundup.cli.shared_flags import EngineFlags, ReadingFlags
from groundup.data.clean.settings import CleanSettings
from groundup.errors import ConfigError

if TYPE_CHECKING:
    from groundup.data.clean import CleanSummary


@dataclass(frozen=True, kw_only=True)
class Arguments(ReadingFlags, CleanSettings, EngineFlags):
    """Leave out duplicates, near duplicates and poor documents; write the others as JSON lines."""

    files: Positional[tuple[str, ...]]
    """Files, folders, globs, addresses such as hf://… or - for standard input, in all formats that
    data prepare reads."""

    out: Path = Path("clean.jsonl")
    """The file to write: .jsonl, also packed as .gz, .zst or .xz. A report is put beside it."""

    validation: tuple[str, ...] = ()
    """Validation text, named as FILES: the report says how much of it stands in what is kept."""

    num_threads: int | None = None
    """Threads to measure documents with; all cores if not given. The result is the same."""

    on_error: Literal["stop", "skip"] = "stop"
    """What to do with files that cannot be read (permissions, damage, no text): stop, or skip."""

    dry_run: bool = False
    """Count only, and write nothing."""

    overwrite: bool = False
    """Replace files that are already there."""


def run(arguments: Arguments) -> None:
    """Clean and print what came of it."""
    import dataclasses

    from groundup.cli.progress import progress_bar
    from groundup.data.clean import clean

    if not arguments.files:
        raise ConfigError("groundup data clean needs at least one file to clean")
    names = [field.name for field in dataclasses.fields(CleanSettings)]
    with arguments.connect() as engine, progress_bar("cleaning") as progress:
        summary = clean(
            arguments.files,
            None if arguments.dry_run else arguments.out,
            CleanSettings(**{name: getattr(arguments, name) for name in names}),
            validation=arguments.validation,
            **arguments.reading,
            on_error=arguments.on_error,
            num_threads=arguments.num_threads,
            overwrite=arguments.overwrite,
            progress=progress,
            engine=engine,
        )
    _print_summary(summary, None if arguments.dry_run else arguments.out)


def _print_summary(summary: "CleanSummary", out: Path | None) -> None:
    from groundup.cli.tables import print_results, print_table
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
