"""A checkpoint in another layout: one file with all weights, or several with some rows each.

Both are read alike by whatever reads checkpoints here; other tools want one file. No process group.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from groundup.checkpoint.folder import CheckpointFolder
from groundup.checkpoint.record import OPTIMIZER_FORMAT, SHARDED_VERSION, Checkpoint, FileEntry
from groundup.checkpoint.shard_files import shard_name, shard_stream
from groundup.checkpoint.state_tree import pack_tree
from groundup.checkpoint.weights import save_stream


def convert(checkpoint: Checkpoint, num_shards: int | None) -> Path:
    """Write a checkpoint anew in its place; a kill leaves one of the two.

    num_shards: into how many files its tensors are cut; None for one file as it is by default.
    """
    path = checkpoint.path.parent
    folder = (
        CheckpointFolder(path, keep_last=None)
        if num_shards is None
        else _CutFolder(path, num_shards)
    )
    return folder.save(
        checkpoint.step,
        checkpoint.adapted_state(),
        checkpoint.optimizer_state(),
        checkpoint.state,
        checkpoint.metric,
    )


class _CutFolder(CheckpointFolder):
    """Saves what `num_shards` ranks would, one after the other."""

    def __init__(self, path: Path, num_shards: int) -> None:
        super().__init__(path, keep_last=None)
        self._num_shards = num_shards

    def save(
        self,
        step: int,
        model_state: Mapping[str, Tensor],
        optimizer_state: Mapping[str, Any],
        state: Mapping[str, Any],
        metric: float | None = None,
    ) -> Path:
        record = self._new_record(step, state, metric, SHARDED_VERSION)
        first: dict[int, str] = {}
        names = {name: first.setdefault(id(one), name) for name, one in model_state.items()}
        tied = {name: kept for name, kept in names.items() if name != kept}
        model = {name: model_state[name] for name in names if name not in tied}
        optimizer, outline = pack_tree(dict(optimizer_state), OPTIMIZER_FORMAT)
        num_bytes = sum(one.nbytes for one in (*model.values(), *optimizer.values()))
        files: dict[str, FileEntry] = {}
        with self._new_folder(step, num_bytes) as temporary:
            for rank in range(self._num_shards):
                for kind, tensors, names_tied, metadata in (
                    ("model", model, tied, {}),
                    ("optimizer", optimizer, {}, outline),
                ):
                    parts = {name: self._part(one, rank) for name, one in tensors.items()}
                    cut = {name: part for name, (part, _) in parts.items() if part is not None}
                    offsets = {name: offset for name, (_, offset) in parts.items()}
                    shapes = {name: one.shape for name, one in tensors.items()}
                    stream = shard_stream(cut, offsets, shapes, names_tied, metadata)
                    name = shard_name(kind, rank)
                    content = save_stream(temporary / name, stream)
                    files[name] = FileEntry(num_bytes=stream.num_bytes, hash=content)
            self._complete(temporary, record.model_copy(update={"files": files}))
        return self.path_of(step)

    def _part(self, tensor: Tensor, rank: int) -> tuple[Tensor | None, list[int]]:
        """The rows of a rank and where they begin; numbers without rows are the first rank's."""
        if not tensor.ndim:
            return (None if rank else tensor), []
        rows = -(-len(tensor) // self._num_shards)
        begin = min(rank * rows, len(tensor))
        return tensor[begin : begin + rows], [begin] + [0] * (tensor.ndim - 1)
