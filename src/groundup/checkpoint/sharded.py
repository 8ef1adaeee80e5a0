"""Checkpoints of sharded weights, through torch.distributed.checkpoint (DCP).

Each rank writes two safetensors files, its rows of the weights and of the optimizer state, to a
temporary folder, which is renamed at the end. DCP plans which rank writes and reads which part, for
any world size.
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
    """A `CheckpointFolder` that all ranks save to together; an error on one rank is raised on all.

    States may contain DTensors, of which each rank writes its own part. `group` is a CPU process
    group of all ranks.
    """

    group: distributed.ProcessGroup | None = None

    def prepare(self, work: Callable[[], None]) -> None:
        self._on_first(work)

    def save(
        self,
        step: int,
        model_state: Mapping[str, Tensor],
        optimizer_state: Mapping[str, Any],
        state: Mapping[str, Any],
        metric: float | None = None,
    ) -> Path:
        """All ranks must call this, with the same arguments except for their parts of tensors."""
        # A rank with no rows of a tensor cannot see which tensors share memory.
        shared = self._on_first(lambda: _shared(model_state))
        model = {name: one for name, one in model_state.items() if name not in shared}
        optimizer, outline = pack_tree(dict(optimizer_state))
        more = {"version": SHARDED_VERSION, "shared": shared, "optimizer": outline}
        record = new_record(step, state, metric, **more)
        file_of = dict.fromkeys(model, 1) | dict.fromkeys(optimizer, 2)
        with contextlib.ExitStack() as stack:
            folder: Path = self._on_first(lambda: stack.enter_context(self._new_folder(step)))
            writer = HuggingFaceStorageWriter(str(folder), file_of, save_distributed=True)
            try:
                save({**model, **optimizer}, storage_writer=writer, process_group=self.group)
            except CheckpointException as error:
                rank, (cause, _) = min(error.failures.items())
                raise _failure(rank, cause, folder) from error
            own = folder.glob(f"shard-{distributed.get_rank(self.group) + 1:05d}-*")
            parts = self._on_all_ranks(lambda: {path.name: FileEntry.of(path) for path in own})

            def commit() -> None:
                write_record(folder, record, {name: one[name] for one in parts for name in one})
                stack.close()
                self._drop_old(step)

            self._on_first(commit)
        return self.path_of(step)

    def _on_first(self, work: Callable[[], Any]) -> Any:
        """Run on the first rank and return the result on every rank."""
        is_first = distributed.get_rank(self.group) == 0
        return self._on_all_ranks(lambda: work() if is_first else None)[0]

    def _on_all_ranks(self, work: Callable[[], Any]) -> list[Any]:
        """Run on all ranks and gather the results; an error on one rank is raised on all."""
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
    allocate: Callable[[int, Tensor], Tensor],
    group: distributed.ProcessGroup | None = None,
) -> dict[str, Any]:
    """Load the model's tensors in place and return the optimizer's state. Each rank reads its part.

    checkpoint: of any layout and world size, with the same names and shapes.
    allocate: creates the tensor to load into, given the parameter's index and a meta tensor with
        the stored shape and dtype. DTensors are returned as this rank's rows.
    group: a CPU process group of all ranks; None is the default group.
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
        values.update({key: allocate(index, one) for key, one in tensors.items()})
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
    """Map each further name of a tied tensor to its first name."""
    first: dict[int, str] = {}
    local = {name: _local(one) for name, one in state.items()}
    names = {
        name: first.setdefault(one.data_ptr(), name) for name, one in local.items() if one.numel()
    }
    return {name: kept for name, kept in names.items() if name != kept}


def _local(value: Any) -> Any:
    return value.to_local() if isinstance(value, DTensor) else value
