"""`groundup data verify`: shards against their index, byte for byte."""

from pathlib import Path

from groundup.cli.arguments import Positional
from groundup.config import Settings


class Arguments(Settings):
    """Verify the hash of every shard; report the first mismatch."""

    folder: Positional[Path]
    """Folder written by groundup data prepare."""

    tokenizer: Path | None = None
    """Also check that the shards were made with this tokenizer."""


def run(arguments: Arguments) -> None:
    """Verify and say that all is well."""
    from groundup.cli.terminal import progress_bar
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
    print(f"{arguments.folder} is sound: {shards}, {size}")
