"""`groundup data prepare`: a corpus into shards of ids."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tyro.conf import Positional

from groundup.cli.shared_flags import EngineFlags, ReadingFlags, TokenizerFlags
from groundup.errors import ConfigError

if TYPE_CHECKING:
    from groundup.data.prepare import PrepareSummary


@dataclass(frozen=True, kw_only=True)
class Arguments(ReadingFlags, TokenizerFlags, EngineFlags):
    """Encode a corpus into shards; after a kill, the same command continues where it stopped."""

    files: Positional[tuple[str, ...]]
    """Files, folders, globs, addresses such as hf://… or - for standard input: .txt, .md, .html,
    source code, .jsonl, .csv, .parquet and more, also packed as .gz, .zst or .xz. Of a folder other
    files are left out and counted."""

    out: Path = Path("shards")
    """The folder for the shards and their index."""

    validation_fraction: float = 0.005
    """Fraction of the documents for validation; chosen by hash, so a document stays where it is."""

    shard_ids: int = 100_000_000
    """A shard is complete with the document that brings it to this many ids."""

    separator: str = "<|endoftext|>"
    """The special token that separates documents in plain text and ends each one in the shards."""

    num_threads: int | None = None
    """Threads to encode with; all cores if not given. The result is the same."""

    on_error: Literal["stop", "skip"] = "stop"
    """What to do with files that cannot be read (permissions, damage, no text): stop, or skip."""

    overwrite: bool = False
    """Replace shards that are already in the folder."""


def run(arguments: Arguments) -> None:
    """Prepare and print the result."""
    from groundup.cli.progress import progress_bar
    from groundup.data.prepare import prepare

    if not arguments.files:
        raise ConfigError("groundup data prepare needs at least one file to encode")
    tokenizer = arguments.load()
    with arguments.connect() as engine, progress_bar("encoding") as progress:
        summary = prepare(
            arguments.files,
            tokenizer,
            arguments.out,
            validation_fraction=arguments.validation_fraction,
            shard_ids=arguments.shard_ids,
            separator=arguments.separator,
            **arguments.reading,
            on_error=arguments.on_error,
            num_threads=arguments.num_threads,
            overwrite=arguments.overwrite,
            progress=progress,
            engine=engine,
        )
    print_summary(summary)


def print_summary(summary: "PrepareSummary") -> None:
    """What lies in the folder, and how fast it came there."""
    from groundup.cli.tables import print_results
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
    rows.append(("bytes per token", f"{num_bytes / num_ids:.3f}"))
    if summary.outcome != "up to date":
        rate = summary.num_bytes / summary.seconds / 1e6
        rows.append(("time", f"{format_duration(summary.seconds)}, {rate:,.1f} MB/s"))
    for name, split in index.splits.items():
        if not split.num_ids and (name == "train" or index.settings.validation_fraction):
            fix = "rerun with another --validation-fraction and --overwrite, or with more documents"
            rows.append(("note", f"no {name} split; {fix}"))
    verb = {"written": "wrote", "resumed": "finished", "up to date": "up to date:"}
    folder = shlex.quote(str(summary.folder))
    print_results(f"{verb[summary.outcome]} {folder}", rows)
