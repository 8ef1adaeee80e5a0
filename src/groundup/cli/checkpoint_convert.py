"""`groundup checkpoint convert`: a checkpoint as one file, or in shards as many ranks write it."""

from dataclasses import dataclass
from typing import Literal

from tyro.conf import Positional

from groundup.errors import ConfigError

_MAX_SHARDS = 99_999


@dataclass(frozen=True)
class Arguments:
    """Rewrite a checkpoint in its place: as one safetensors file for weights and one for the
    optimizer, or in shards. Commands here read both; other tools read one file."""

    run: Positional[str]
    """The run: its folder, or its name under runs."""

    to: Literal["plain", "sharded"]
    """One file, or one for each of several ranks."""

    num_shards: int = 8
    """The number of shards; any number of ranks can read them."""

    checkpoint: str = "newest"
    """The checkpoint to convert: newest, best, or a step."""


def run(arguments: Arguments) -> None:
    """Convert, and say what lies there now."""
    if not 1 <= arguments.num_shards <= _MAX_SHARDS:
        raise ConfigError(
            f"--num-shards must be at least 1 and at most {_MAX_SHARDS}, got {arguments.num_shards}"
        )
    import os

    from groundup.checkpoint import CheckpointFolder
    from groundup.checkpoint.convert import convert
    from groundup.cli.evaluate import parse_checkpoint
    from groundup.cli.runs import find_run
    from groundup.runs.folder import RunFolder

    folder = RunFolder(find_run(arguments.run))
    which = parse_checkpoint(arguments.checkpoint)
    with folder.claim(resume=True):
        checkpoints = CheckpointFolder(folder.checkpoints)
        found = {"newest": checkpoints.newest, "best": checkpoints.best}
        checkpoint = checkpoints.load(which) if isinstance(which, int) else found[which]()
        path = convert(checkpoint, arguments.num_shards if arguments.to == "sharded" else None)
    print(f"wrote {path}: {', '.join(sorted(os.listdir(path)))}")
