"""Checkpoints of sharded weights, through torch.distributed.checkpoint.

Every rank writes its rows, while training continues, into one folder that gets its name when the
last rank is done. torch plans who writes and who reads which part, for any number of ranks; what
lies on disk are safetensors files (`shard_files`), where torch itself would pickle.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, distributed
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.distributed.tensor import DTensor

from groundup.checkpoint.folder import CheckpointFolder
from groundup.checkpoint.record import OPTIMIZER_FORMAT, SHARDED_VERSION, Checkpoint, FileEntry
from groundup.checkpoint.shard_files import Chunk, Part, read_part, shard_name, shard_stream
from groundup.checkpoint.state_tree import pack, pack_tree
from groundup.checkpoint.weights import save_stream
from groundup.errors import GroundupError

_Value = TypeVar("_Value")

_KINDS: tuple[Literal["model"], Literal["optimizer"]] = ("model", "optimizer")

Place = Callable[[int, Tensor], Tensor]
"""Gives the tensor to load a value of the optimizer's state into, for the number of the parameter
and the value's shape and type."""


class ShardedFolder(CheckpointFolder):
    """Saves as `CheckpointFolder` does, by all ranks together and in the background.

    The states may hold DTensors, of which each rank writes its own part.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        keep_last: int | None = 3,
        keep_best: bool = True,
        *,
        group: distributed.ProcessGroup | None = None,
    ) -> None:
        """group: of all ranks, for the host's memory, used by nobody else."""
        super().__init__(path, keep_last, keep_best)
        self._group = group
        self._is_first = distributed.get_rank(group) == 0
        self._saving: tuple[Future[Any], contextlib.ExitStack, Path] | None = None

    def prepare(self, work: Callable[[], None]) -> None:
        """What has to come before a save, by the first rank; an error of it is everybody's."""
        self._agree(work)

    def save(
        self,
        step: int,
        model_state: Mapping[str, Tensor],
        optimizer_state: Mapping[str, Any],
        state: Mapping[str, Any],
        metric: float | None = None,
    ) -> Path:
        """Copy the states and begin to write them; `finish` tells how that ended.

        All ranks call this, with the same arguments but for their parts of the tensors.
        """
        self.finish()
        record = self._new_record(step, state, metric, SHARDED_VERSION)
        tied = _tied(model_state)
        model = {name: one for name, one in model_state.items() if name not in tied}
        optimizer, outline = pack_tree(dict(optimizer_state), OPTIMIZER_FORMAT)
        tensors = _with_kinds(model, optimizer)
        num_bytes = sum(one.numel() * one.element_size() for one in tensors.values())
        leaving = contextlib.ExitStack()

        def commit(temporary: Path, files: dict[str, FileEntry]) -> None:
            self._complete(temporary, record.model_copy(update={"files": files}))
            leaving.close()
            self._drop_old(step)

        temporary = self._agree(lambda: leaving.enter_context(self._new_folder(step, num_bytes)))
        writer = _Writer(temporary, distributed.get_rank(self._group), tied, outline, commit)
        pending = async_save(tensors, storage_writer=writer, process_group=self._group)
        assert isinstance(pending, Future)
        self._saving = pending, leaving, self.path_of(step)
        return self.path_of(step)

    def finish(self) -> None:
        """Wait until what was begun is written. An OSError names the checkpoint that is not."""
        if self._saving is None:
            return
        pending, leaving, destination = self._saving
        self._saving = None
        try:
            pending.result()
        except CheckpointException as error:
            # What was written goes, as it does where an error is raised within a block.
            with leaving:
                raise _first_failure(error, destination) from error

    def _agree(self, make: Callable[[], _Value]) -> _Value:
        """What the first rank makes, or its error, on every rank."""
        answer: list[Any] = [None]
        if self._is_first:
            try:
                answer = [make()]
            except (OSError, GroundupError) as error:
                answer = [error]
        distributed.broadcast_object_list(answer, src=0, group=self._group)
        if isinstance(answer[0], Exception):
            raise answer[0]
        made: _Value = answer[0]
        return made


def load_into(
    checkpoint: Checkpoint,
    model_state: Mapping[str, Tensor],
    place: Place,
    group: distributed.ProcessGroup | None = None,
) -> dict[str, Any]:
    """Fill the model's tensors, and give the state of the optimizer. Each rank reads its parts.

    checkpoint: of any layout and number of ranks, with tensors of these names and shapes.
    model_state: tensors and DTensors to be filled in place.
    place: where the optimizer's tensors go. What it gives as DTensors is returned as plain tensors,
        this rank's rows.
    group: of all ranks, for the host's memory; the default one if None.
    """
    tied = checkpoint.stored("model").tied
    model = {name: one for name, one in model_state.items() if name not in tied}
    state = checkpoint.optimizer_outline()
    state["state"] = {
        index: {key: place(index, one) for key, one in values.items()}
        for index, values in state["state"].items()
    }
    _, optimizer = pack(state)
    reader = _Reader(checkpoint)
    load(_with_kinds(model, optimizer), storage_reader=reader, process_group=group)
    state["state"] = {
        index: {key: _local(one) for key, one in values.items()}
        for index, values in state["state"].items()
    }
    return state


class _AsPlanned:
    """What torch asks of who writes and who reads, and neither has anything to do for."""

    def reset(self, checkpoint_id: Any = None) -> None:
        pass

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True

    def set_up_storage_writer(self, *_: Any, **__: Any) -> None:
        pass

    set_up_storage_reader = set_up_storage_writer


class _Writer(_AsPlanned, BlockingAsyncStager, StorageWriter):
    """One rank's files of a checkpoint, and on the first rank the end of it.

    As a stager it copies all tensors to the host before training goes on.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        tied: Mapping[str, str],
        outline: Mapping[str, str],
        commit: Callable[[Path, dict[str, FileEntry]], None],
    ) -> None:
        super().__init__()
        self._folder = folder
        self._rank = rank
        self._headers = {"model": (tied, {}), "optimizer": ({}, outline)}
        self._commit = commit
        self._written: dict[str, FileEntry] = {}

    def write_data(
        self, plan: SavePlan, planner: SavePlanner
    ) -> torch.futures.Future[list[WriteResult]]:
        parts: dict[str, dict[str, Part]] = {kind: {} for kind in _KINDS}
        for item in plan.items:
            kind, _, name = item.index.fqn.partition("/")
            assert item.tensor_data is not None, f"{name} is not a tensor"
            part = planner.resolve_data(item)
            assert isinstance(part, Tensor)
            parts[kind][name] = part.detach(), item.tensor_data.chunk.offsets, item.tensor_data.size
        for kind, (tied, metadata) in self._headers.items():
            # The first rank's headers describe all, whatever it holds.
            if parts[kind] or self._rank == 0:
                stream = shard_stream(parts[kind], tied, metadata)
                name = shard_name(kind, self._rank)
                content = save_stream(self._folder / name, stream)
                self._written[name] = FileEntry(num_bytes=stream.num_bytes, hash=content)
        return _done([WriteResult(item.index, 0, self._written) for item in plan.items])

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        written = dict(self._written)
        for of_rank in results:
            for result in of_rank[:1]:
                written |= result.storage_data
        self._commit(self._folder, written)


class _Reader(_AsPlanned, StorageReader):
    """The files of a checkpoint, of which each rank reads the parts that it needs."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._tensors = {
            f"{kind}/{name}": one
            for kind in _KINDS
            for name, one in checkpoint.stored(kind).tensors.items()
        }

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        return Metadata(
            {
                name: TensorStorageMetadata(
                    TensorProperties(one.dtype),
                    torch.Size(one.shape),
                    [
                        ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes))
                        for chunk in one.chunks
                    ],
                )
                for name, one in self._tensors.items()
            }
        )

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> torch.futures.Future[None]:
        for item in plan.items:
            chunk = self._chunk(item.storage_index)
            name = item.storage_index.fqn.partition("/")[2]
            part = read_part(chunk, name, tuple(item.storage_offsets), tuple(item.lengths))
            target = planner.resolve_tensor(item).detach()
            target.copy_(part)
            planner.commit_tensor(item, target)
        return _done(None)

    def _chunk(self, index: MetadataIndex) -> Chunk:
        chunks = self._tensors[index.fqn].chunks
        offsets = tuple(index.offset or (0,) * len(chunks[0].offsets))
        return next(one for one in chunks if one.offsets == offsets and 0 not in one.sizes)


def _with_kinds(model: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]) -> dict[str, Tensor]:
    states = zip(_KINDS, (model, optimizer), strict=True)
    return {f"{kind}/{name}": one for kind, state in states for name, one in state.items()}


def _tied(state: Mapping[str, Tensor]) -> dict[str, str]:
    """For each other name of a tensor its first one."""
    first: dict[int, str] = {}
    local = {name: _local(one) for name, one in state.items()}
    names = {
        name: first.setdefault(one.data_ptr(), name) for name, one in local.items() if one.numel()
    }
    return {name: kept for name, kept in names.items() if name != kept}


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _first_failure(error: CheckpointException, destination: Path) -> OSError:
    """As an error of the disk, which is what it mostly is."""
    rank, (cause, _) = min(error.failures.items())
    number, reason = errno.EIO, str(cause) or type(cause).__name__
    if isinstance(cause, OSError):
        number, reason = cause.errno or number, cause.strerror or reason
    return OSError(number, f"rank {rank}: {reason}", str(destination))


def _done(value: _Value) -> torch.futures.Future[_Value]:
    future: torch.futures.Future[_Value] = torch.futures.Future()
    future.set_result(value)
    return future
