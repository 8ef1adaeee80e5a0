"""The data verbs: each a class of arguments and the function of its name."""

import shlex
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from groundup.cli.arguments import Positional
from groundup.cli.shared import CorpusFlags, TokenizerFlags, held_warnings
from groundup.cli.terminal import (
    print_records,
    print_table,
    print_values,
    printable,
    progress_bar,
    show_value,
)
from groundup.config import Seed, Settings
from groundup.data.clean import CleanSettings
from groundup.errors import ConfigError

if TYPE_CHECKING:
    from groundup.data.shards.index import SourceEntry
    from groundup.text_files import Skipped

_MAX_REASONS = 40
_SAMPLES = {"stories": ("stories.txt", 20.0), "dialogues": ("dialogues.jsonl", 0.7)}


class Sample(Settings):
    """Write the built-in corpus of generated short stories or dialogues."""

    kind: Literal["stories", "dialogues"] = "stories"
    """Stories to train a model on, or questions and answers to tune it with (groundup tune)."""

    megabytes: float | None = Field(default=None, gt=0, le=10**6)
    """Amount of text in megabytes. Default: 20, or 0.7 for dialogues."""

    seed: Seed = 0
    """Random seed."""

    out: Path | None = None
    """Output file. Default: stories.txt or dialogues.jsonl."""


def sample(arguments: Sample) -> None:
    from groundup.data.samples import write_sample_corpus
    from groundup.planner.quantities import show_bytes

    kind = arguments.kind
    file, megabytes = _SAMPLES[kind]
    out, megabytes = arguments.out or Path(file), arguments.megabytes or megabytes
    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder; name the text file to write")
    with progress_bar(f"writing {kind}") as progress:
        corpus = write_sample_corpus(out, megabytes, arguments.seed, progress, kind)
    print(f"wrote {out}: {corpus.num_texts:,} {kind}, {show_bytes(corpus.num_bytes)}")


class Clean(CorpusFlags, CleanSettings):
    """Remove duplicates, near duplicates and low-quality documents; write the rest as JSON
    lines."""

    out: Path = Path("clean.jsonl")
    """The .jsonl file to write."""

    dry_run: bool = False
    """Only count; write nothing."""

    overwrite: bool = False
    """Replace existing files."""


def clean(arguments: Clean) -> None:
    from groundup.data.clean import clean

    out = None if arguments.dry_run else arguments.out
    with arguments.work("cleaning") as work:
        # The flags include the settings.
        summary = clean(arguments.files, out, arguments, overwrite=arguments.overwrite, **work)
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


class Prepare(CorpusFlags, TokenizerFlags):
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


def prepare(arguments: Prepare) -> None:
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
    # Each document ends with an id of its own.
    num_tokens = sum(split.num_tokens - split.num_documents for split in splits)
    num_bytes = sum(split.num_bytes for split in splits)
    values["bytes_per_token"] = bytes_per_token(num_bytes, num_tokens)
    if summary.outcome != "up to date":
        values["bytes_per_second"] = summary.num_bytes / summary.seconds
    verb = {"written": "wrote", "resumed": "finished", "up to date": "up to date:"}
    print_values(f"{verb[summary.outcome]} {shlex.quote(str(summary.folder))}", values)
    _print_files(index.sources, skipped)


class Verify(Settings):
    """Verify the hash of every shard; report the first mismatch."""

    folder: Positional[Path]
    """Folder written by groundup data prepare."""

    tokenizer: Path | None = None
    """Also check that the shards were made with this tokenizer."""


def verify(arguments: Verify) -> None:
    from groundup.data.shards import verify
    from groundup.planner.quantities import show_bytes
    from groundup.runtime import count_of
    from groundup.tokenizer import Tokenizer

    tokenizer = None if arguments.tokenizer is None else Tokenizer.load(arguments.tokenizer)
    with progress_bar("checking") as progress:
        index = verify(arguments.folder, tokenizer, progress)
    entries = [shard for split in index.splits.values() for shard in split.shards]
    shards = count_of(len(entries), "shard")
    size = show_bytes(sum(shard.num_tokens for shard in entries) * index.id_bytes)
    print(f"{arguments.folder} is intact: {shards}, {size}")


def _print_files(sources: "Sequence[SourceEntry]", skipped: "Sequence[Skipped]") -> None:
    """Print counts by suffix, and which files were skipped or decoded with a guess, and why."""
    from groundup.planner.quantities import show_bytes
    from groundup.runtime import count_of
    from groundup.text_files.sources import show_names

    rows: dict[str, list[int]] = {}
    reasons: dict[str, list[str]] = {}
    files = [(one.path, one.size, 0, f"skipped, {one.reason}") for one in skipped]
    for entry in sources:
        note = entry.unreadable or ("" if entry.num_documents else "has no text")
        note = note if entry.num_documents or not note else f"skipped, {note}"
        files.append((entry.path, entry.size or 0, entry.num_documents, note))
    for path, size, num_documents, note in files:
        suffixes = PurePath(path).suffixes
        is_packed = suffixes[-1:] in ([".gz"], [".zst"], [".xz"])
        suffix = "".join(suffixes[-2 if is_packed else -1 :]) or "(none)"
        is_read = num_documents > 0
        before = rows.get(suffix, [0] * 5)
        counts = (1, size, is_read, num_documents, not is_read)
        rows[suffix] = [one + more for one, more in zip(before, counts, strict=True)]
        if note:
            reasons.setdefault(note, []).append(path)
    table = [
        (name, f"{one[0]:,}", show_bytes(one[1]), *(f"{number:,}" for number in one[2:]))
        for name, one in sorted(rows.items())
    ]
    print_table("files", ("", "files", "bytes", "read", "documents", "skipped"), table)
    for note, paths in list(reasons.items())[:_MAX_REASONS]:
        print(printable(f"  {note}: {show_names(sorted(paths))}"))
    if len(reasons) > _MAX_REASONS:
        print(f"  and {count_of(len(reasons) - _MAX_REASONS, 'more reason')}")
