"""Checkpoints of sharded weights, through torch.distributed.checkpoint.

Every rank writes its rows into one folder that gets its name when all are done: safetensors files,
one for the rank's weights and one for its optimizer state. torch plans who writes and who reads
which part, for any number of ranks.
"""

import contextlib
import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from groundup.checkpoint.folder import CheckpointFolder
from groundup.checkpoint.record import (
    SHARDED_VERSION,
    Checkpoint,
    FileEntry,
    new_record,
    pack,
    pack_tree,
    write_record,
)
from groundup.config import current_name
from groundup.errors import GroundupError


@dataclass(eq=False)
class ShardedFolder(CheckpointFolder):
    """A `CheckpointFolder` that all ranks save to together; an error on one is raised on all.

    The states may hold DTensors, of which each rank writes its own part. `group` is of all ranks,
    for the host's memory.
    """

    group: distributed.ProcessGroup | None = None

    def prepare(self, work: Callable[[], None]) -> None:
        self._first(work)

    def save(
        self,
        step: int,
        model_state: Mapping[str, Tensor],
        optimizer_state: Mapping[str, Any],
        state: Mapping[str, Any],
        metric: float | None = None,
    ) -> Path:
        """All ranks call this, with the same arguments but for their parts of the tensors."""
        # A rank without a row of a tensor cannot tell whose memory it has.
        shared = self._first(lambda: _shared(model_state))
        model = {name: one for name, one in model_state.items() if name not in shared}
        optimizer, outline = pack_tree(dict(optimizer_state))
        more = {"version": SHARDED_VERSION, "shared": shared, "optimizer": outline}
        record = new_record(step, state, metric, **more)
        file_of = dict.fromkeys(model, 1) | dict.fromkeys(optimizer, 2)
        with contextlib.ExitStack() as leaving:
            folder: Path = self._first(lambda: leaving.enter_context(self._new_folder(step)))
            writer = HuggingFaceStorageWriter(str(folder), file_of, save_distributed=True)
            try:
                save({**model, **optimizer}, storage_writer=writer, process_group=self.group)
            except CheckpointException as error:
                rank, (cause, _) = min(error.failures.items())
                raise _failure(rank, cause, folder) from error
            own = folder.glob(f"shard-{distributed.get_rank(self.group) + 1:05d}-*")
            parts = self._all(lambda: {path.name: FileEntry.of(path) for path in own})

            def commit() -> None:
                write_record(folder, record, {name: one[name] for one in parts for name in one})
                leaving.close()
                self._drop_old(step)

            self._first(commit)
        return self.path_of(step)

    def _first(self, work: Callable[[], Any]) -> Any:
        """What the first rank makes, on every rank."""
        is_first = distributed.get_rank(self.group) == 0
        return self._all(lambda: work() if is_first else None)[0]

    def _all(self, work: Callable[[], Any]) -> list[Any]:
        """What every rank makes, or an error of one of them, on every rank."""
        made: list[Any] = [None] * distributed.get_world_size(self.group)
        try:
            own = work()
        except (OSError, GroundupError) as error:
            own = error
        distributed.all_gather_object(made, own, group=self.group)
        for rank, one in enumerate(made):
            if isinstance(one, GroundupError):
                raise one
            if isinstance(one, OSError):
                raise _failure(rank, one, one.filename)
        return made


def load_into(
    checkpoint: Checkpoint,
    model_state: Mapping[str, Tensor],
    place: Callable[[int, Tensor], Tensor],
    group: distributed.ProcessGroup | None = None,
) -> dict[str, Any]:
    """Fill the model's tensors, and give the state of the optimizer. Each rank reads its parts.

    checkpoint: of any layout and number of ranks, with tensors of these names and shapes.
    place: gives the tensor to load a value of the optimizer's state into, for the number of the
        parameter and a value of that shape and type. DTensors are returned as this rank's rows.
    group: of all ranks, for the host's memory; the default one if None.
    """
    reader = HuggingFaceStorageReader(str(checkpoint.path))
    stored = reader.read_metadata().state_dict_metadata
    empty = {
        name: torch.empty(one.size, dtype=one.properties.dtype, device="meta")
        for name, one in stored.items()
        if isinstance(one, TensorStorageMetadata)
    }
    state = checkpoint.optimizer_tree(empty)
    for index, values in state["state"].items():
        tensors = {key: one for key, one in values.items() if isinstance(one, Tensor)}
        values.update({key: place(index, one) for key, one in tensors.items()})
    names = {name: current_name(name) for name in stored}
    model = {name: model_state[new] for name, new in names.items() if new in model_state}
    load({**model, **pack(state)[1]}, storage_reader=reader, process_group=group)
    for values in state["state"].values():
        values.update({key: _local(one) for key, one in values.items()})
    return state


def _failure(rank: int, cause: BaseException, path: object) -> OSError:
    reason = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
    return OSError(getattr(cause, "errno", None) or errno.EIO, f"rank {rank}: {reason}", str(path))


def _shared(state: Mapping[str, Tensor]) -> dict[str, str]:
    """For each other name of a tensor its first one."""
    first: dict[int, str] = {}
    local = {name: _local(one) for name, one in state.items()}
    names = {
        name: first.setdefault(one.data_ptr(), name) for name, one in local.items() if one.numel()
    }
    return {name: kept for name, kept in names.items() if name != kept}


def _local(value: Any) -> Any:
    return value.to_local() if isinstance(value, DTensor) else value
