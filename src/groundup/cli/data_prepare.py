"""`groundup data prepare`: a corpus into shards of ids."""

import shlex
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from pydantic import Field

from groundup.cli.shared import CorpusFlags, TokenizerFlags, held_warnings
from groundup.cli.terminal import print_table, print_values, printable

if TYPE_CHECKING:
    from groundup.data.shards.index import SourceEntry
    from groundup.text_files import Skipped

_MOST_REASONS = 20


class Arguments(CorpusFlags, TokenizerFlags):
    """Tokenize a corpus into shards; after a kill, the same command continues."""

    out: Path = Path("shards")
    """Output folder for shards and index."""

    validation_fraction: float = Field(default=0.005, ge=0, lt=1)
    """Fraction of documents held out for validation, chosen by hash so that a document stays in its
split."""

    separator: str = "<|endoftext|>"
    """Special token that separates documents in plain text and ends each one in the shards."""

    overwrite: bool = False
    """Replace existing shards."""


def run(arguments: Arguments) -> None:
    """Prepare, and print what lies in the folder and how fast it came there."""
    from groundup.data.prepare import prepare
    from groundup.text_files import Reading, Skipped, find_sources
    from groundup.tokenizer.training import bytes_per_token

    tokenizer = arguments.load()
    skipped: list[Skipped] = []
    sources = find_sources(arguments.files, Reading(**arguments.reading), skipped)
    with arguments.work("encoding") as work, held_warnings(are_shown=False):
        summary = prepare(
            sources,
            tokenizer,
            arguments.out,
            validation_fraction=arguments.validation_fraction,
            separator=arguments.separator,
            overwrite=arguments.overwrite,
            **work,
        )
    index, values = summary.index, dict[str, Any]()
    for name, split in index.splits.items():
        counts = {"ids": split.num_tokens, "documents": split.num_documents}
        values[name] = counts | {"text_bytes": split.num_bytes, "shards": len(split.shards)}
        if not split.num_tokens and (name == "train" or index.settings["validation_fraction"]):
            fix = "rerun with another --validation-fraction and --overwrite, or with more documents"
            values["note"] = f"no {name} split; {fix}"
    splits = index.splits.values()
    # Each document has an id that ends it.
    num_tokens = sum(split.num_tokens - split.num_documents for split in splits)
    num_bytes = sum(split.num_bytes for split in splits)
    values["bytes_per_token"] = bytes_per_token(num_bytes, num_tokens)
    if summary.outcome != "up to date":
        values["bytes_per_second"] = summary.num_bytes / summary.seconds
    verb = {"written": "wrote", "resumed": "finished", "up to date": "up to date:"}
    print_values(f"{verb[summary.outcome]} {shlex.quote(str(summary.folder))}", values)
    _print_files(index.sources, skipped)


def _print_files(sources: "Sequence[SourceEntry]", skipped: "Sequence[Skipped]") -> None:
    """Print the files by suffix, how many are read, and what was skipped or assumed and why."""
    from groundup.planner.quantities import show_bytes
    from groundup.text_files.sources import show_names

    rows: dict[str, list[int]] = {}
    reasons: dict[str, list[str]] = {}
    files = [(one.path, one.size, 0, f"skipped, {one.reason}") for one in skipped]
    for entry in sources:
        note = entry.unreadable or ("" if entry.num_documents else "holds no text")
        note = note if entry.num_documents or not note else f"skipped, {note}"
        files.append((entry.path, entry.size or 0, entry.num_documents, note))
    for path, size, num_documents, note in files:
        suffix = (
            "".join(PurePath(path).suffixes[-2:])
            if path.endswith((".gz", ".zst", ".xz"))
            else PurePath(path).suffix
        )
        counts = rows.setdefault(suffix or "(none)", [0, 0, 0, 0, 0])
        is_read = num_documents > 0
        for place, number in enumerate((1, size, is_read, num_documents, not is_read)):
            counts[place] += number
        if note:
            reasons.setdefault(note, []).append(path)
    table = [
        (name, f"{one[0]:,}", show_bytes(one[1]), *(f"{number:,}" for number in one[2:]))
        for name, one in sorted(rows.items())
    ]
    print_table("files", ("", "files", "bytes", "read", "documents", "skipped"), table)
    for note, paths in list(reasons.items())[:_MOST_REASONS]:
        print(printable(f"  {note}: {show_names(sorted(paths))}"))
    if len(reasons) > _MOST_REASONS:
        print(f"  and {len(reasons) - _MOST_REASONS:,} more reasons")
