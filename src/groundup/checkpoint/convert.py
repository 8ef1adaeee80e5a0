"""A checkpoint in another layout: one file with all weights, or several with some rows each.

Both are read alike by whatever reads checkpoints here; other tools want one file. No process group.
"""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from groundup.checkpoint.folder import CheckpointFolder
from groundup.checkpoint.record import OPTIMIZER_FORMAT, SHARDED_VERSION, Checkpoint
from groundup.checkpoint.shard_files import Part, shard_name, shard_stream
from groundup.checkpoint.state_tree import pack_tree


def convert(checkpoint: Checkpoint, num_shards: int | None) -> Path:
    """Write a checkpoint anew in its place; a kill leaves one of the two.

    num_shards: into how many files its tensors are cut; None for one file as it is by default.
    """
    folder = CheckpointFolder(checkpoint.path.parent, keep_last=None)
    step, state, metric = checkpoint.step, checkpoint.state, checkpoint.metric
    model, optimizer_state = checkpoint.adapted_state(), checkpoint.optimizer_state()
    if num_shards is None:
        return folder.save(step, model, optimizer_state, state, metric)
    tied = checkpoint.stored("model").tied
    model = {name: one for name, one in model.items() if name not in tied}
    optimizer, outline = pack_tree(optimizer_state, OPTIMIZER_FORMAT)
    streams = {}
    for rank in range(num_shards):
        parts = _parts(model, rank, num_shards)
        streams[shard_name("model", rank)] = shard_stream(parts, tied, {})
        parts = _parts(optimizer, rank, num_shards)
        streams[shard_name("optimizer", rank)] = shard_stream(parts, {}, outline)
    return folder.save_files(step, streams, state, metric, SHARDED_VERSION)


def _parts(tensors: Mapping[str, Tensor], rank: int, num_shards: int) -> dict[str, Part]:
    """The rows of a rank, as it would write them; numbers without rows are the first rank's."""
    parts: dict[str, Part] = {}
    for name, one in tensors.items():
        if one.ndim:
            rows = -(-len(one) // num_shards)
            begin = min(rank * rows, len(one))
            inner = [0] * (one.ndim - 1)
            parts[name] = one[begin : begin + rows], [begin, *inner], one.shape
        elif rank == 0:
            parts[name] = one, [], []
    return parts
