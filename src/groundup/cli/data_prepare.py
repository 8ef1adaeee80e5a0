"""`groundup data prepare`: a corpus into shards of ids."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from groundup.cli.shared import CorpusFlags, TokenizerFlags

if TYPE_CHECKING:
    from groundup.data.prepare import PrepareSummary


class Arguments(CorpusFlags, TokenizerFlags):
    """Encode a corpus into shards; after a kill, the same command continues where it stopped."""

    out: Path = Path("shards")
    """The folder for the shards and their index."""

    validation_fraction: float = Field(0.005, ge=0, le=1)
    """Fraction of the documents for validation; chosen by hash, so a document stays where it is."""

    separator: str = "<|endoftext|>"
    """The special token that separates documents in plain text and ends each one in the shards."""

    overwrite: bool = False
    """Replace shards that are already in the folder."""


def run(arguments: Arguments) -> None:
    """Prepare and print the result."""
    from groundup.cli.terminal import progress_bar
    from groundup.data.prepare import prepare

    tokenizer = arguments.load()
    with arguments.connect() as engine, progress_bar("encoding") as progress:
        summary = prepare(
            arguments.files,
            tokenizer,
            arguments.out,
            validation_fraction=arguments.validation_fraction,
            separator=arguments.separator,
            **arguments.reading,
            num_threads=arguments.num_threads,
            overwrite=arguments.overwrite,
            progress=progress,
            engine=engine,
        )
    _print_summary(summary)


def _print_summary(summary: "PrepareSummary") -> None:
    """What lies in the folder, and how fast it came there."""
    from groundup.cli.terminal import print_results
    from groundup.planner.quantities import show_bytes
    from groundup.runtime import count_of, format_duration

    index = summary.index
    rows = []
    for name, split in index.splits.items():
        text = f"{count_of(split.num_ids, 'id')}, {count_of(split.num_documents, 'document')}"
        text += f", {show_bytes(split.num_bytes)} of text"
        rows.append((name, f"{text}, {count_of(len(split.shards), f'{index.dtype} shard')}"))
    num_ids = sum(split.num_ids for split in index.splits.values())
    num_bytes = sum(split.num_bytes for split in index.splits.values())
    num_documents = sum(split.num_documents for split in index.splits.values())
    # The id that ends a document stands for no text.
    rows.append(("bytes per token", f"{num_bytes / max(1, num_ids - num_documents):.3f}"))
    if summary.outcome != "up to date":
        rate = summary.num_bytes / summary.seconds / 1e6
        rows.append(("time", f"{format_duration(summary.seconds)}, {rate:,.1f} MB/s"))
    for name, split in index.splits.items():
        if not split.num_ids and (name == "train" or index.settings["validation_fraction"]):
            fix = "rerun with another --validation-fraction and --overwrite, or with more documents"
            rows.append(("note", f"no {name} split; {fix}"))
    verb = {"written": "wrote", "resumed": "finished", "up to date": "up to date:"}
    folder = shlex.quote(str(summary.folder))
    print_results(f"{verb[summary.outcome]} {folder}", rows)
