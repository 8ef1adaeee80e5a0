"""`groundup data prepare`: a corpus into shards of ids."""

import shlex
from pathlib import Path
from typing import Any

from pydantic import Field

from groundup.cli.shared import CorpusFlags, TokenizerFlags
from groundup.cli.terminal import print_values


class Arguments(CorpusFlags, TokenizerFlags):
    """Encode a corpus into shards; after a kill, the same command continues where it stopped."""

    out: Path = Path("shards")
    """The folder for the shards and their index."""

    validation_fraction: float = Field(default=0.005, ge=0, lt=1)
    """Fraction of the documents for validation; chosen by hash, so a document stays where it is."""

    separator: str = "<|endoftext|>"
    """The special token that separates documents in plain text and ends each one in the shards."""

    overwrite: bool = False
    """Replace shards that are already in the folder."""


def run(arguments: Arguments) -> None:
    """Prepare, and print what lies in the folder and how fast it came there."""
    from groundup.data.prepare import prepare
    from groundup.tokenizer.training import bytes_per_token

    tokenizer = arguments.load()
    with arguments.work("encoding") as work:
        summary = prepare(
            arguments.files,
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
