"""`groundup data clean`: documents worth learning from, without duplicates."""

import shlex
from pathlib import Path

from groundup.cli.shared import CorpusFlags
from groundup.cli.terminal import print_records, show_value
from groundup.data.clean import CleanSettings


class Arguments(CorpusFlags, CleanSettings):
    """Remove duplicates, near duplicates and low-quality documents; write the rest as JSON
    lines."""

    out: Path = Path("clean.jsonl")
    """The .jsonl file to write."""

    dry_run: bool = False
    """Only count; write nothing."""

    overwrite: bool = False
    """Replace existing files."""


def run(arguments: Arguments) -> None:
    """Clean and print what came of it."""
    from groundup.data.clean import clean

    out = None if arguments.dry_run else arguments.out
    settings = {name: getattr(arguments, name) for name in CleanSettings.model_fields}
    with arguments.work("cleaning") as work:
        summary = clean(
            arguments.files,
            out,
            CleanSettings(**settings),
            overwrite=arguments.overwrite,
            **work,
        )
    whole = max(summary.counts["read"].num_bytes, 1)
    records = [
        {
            "": name,
            "documents": one.num_documents,
            "text_bytes": one.num_bytes,
            "fraction": one.num_bytes / whole,
        }
        for name, one in summary.counts.items()
    ]
    title = "counted, nothing written" if out is None else f"wrote {shlex.quote(str(out))}"
    print_records(title, records)
    print(show_value("bytes_per_second", whole / summary.seconds))
