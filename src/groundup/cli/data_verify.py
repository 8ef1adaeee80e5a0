"""`groundup data verify`: shards against their index, byte for byte."""

from pathlib import Path

from groundup.cli.arguments import Positional
from groundup.config import Settings


class Arguments(Settings):
    """Hash every shard again; the first that is not what the index says is named."""

    folder: Positional[Path]
    """The folder that groundup data prepare wrote."""

    tokenizer: Path | None = None
    """Also make sure that the shards belong to this tokenizer file."""


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
