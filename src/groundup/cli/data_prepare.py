"""`groundup data prepare`: a corpus into shards of ids."""

import shlex
from pathlib import Path

from pydantic import Field

from groundup.cli.shared import CorpusFlags, TokenizerFlags
from groundup.cli.terminal import print_results


class Arguments(CorpusFlags, TokenizerFlags):
    """Encode a corpus into shards; after a kill, the same command continues where it stopped."""

    out: Path = Path("shards")
    """The folder for the shards and their index."""

    validation_fraction: float = Field(0.005, ge=0, lt=1)
    """Fraction of the documents for validation; chosen by hash, so a document stays where it is."""

    separator: str = "<|endoftext|>"
    """The special token that separates documents in plain text and ends each one in the shards."""

    overwrite: bool = False
    """Replace shards that are already in the folder."""


def run(arguments: Arguments) -> None:
    """Prepare, and print what lies in the folder and how fast it came there."""
    from groundup.data.prepare import prepare
    from groundup.planner.quantities import show_bytes
    from groundup.runtime import count_of

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
    rows, index = [], summary.index
    for name, split in index.splits.items():
        text = f"{count_of(split.num_ids, 'id')}, {count_of(split.num_documents, 'document')}"
        text += f", {show_bytes(split.num_bytes)} of text"
        rows.append((name, f"{text}, {count_of(len(split.shards), f'{index.dtype} shard')}"))
        if not split.num_ids and (name == "train" or index.settings["validation_fraction"]):
            fix = "rerun with another --validation-fraction and --overwrite, or with more documents"
            rows.append(("note", f"no {name} split; {fix}"))
    splits = index.splits.values()
    # The id that ends a document stands for no text.
    num_tokens = sum(split.num_ids - split.num_documents for split in splits)
    bytes_per_token = sum(split.num_bytes for split in splits) / max(1, num_tokens)
    rows.append(("bytes per token", f"{bytes_per_token:.3f}"))
    if summary.outcome != "up to date":
        rows.append(("speed", f"{summary.num_bytes / summary.seconds / 1e6:,.1f} MB/s"))
    verb = {"written": "wrote", "resumed": "finished", "up to date": "up to date:"}
    print_results(f"{verb[summary.outcome]} {shlex.quote(str(summary.folder))}", rows)
