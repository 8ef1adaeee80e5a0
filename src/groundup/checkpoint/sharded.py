"""Checkpoints of sharded weights, through torch.distributed.checkpoint.

Every rank writes its rows, while training continues, into one folder that gets its name when the
last rank is done: safetensors files, one for the rank's weights and one for its optimizer state.
torch plans who writes and who reads which part, for any number of ranks.
"""

import contextlib
import dataclasses
import errno
from collections.abc import Callable, Mapping
from concurrent.futures import Future
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
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor

from groundup.checkpoint.folder import CheckpointFolder, new_record
from groundup.checkpoint.record import (
    OPTIMIZER_NAME,
    SHARDED_VERSION,
    Checkpoint,
    FileEntry,
    write_record,
)
from groundup.checkpoint.state_tree import pack, pack_tree
from groundup.checkpoint.weights import read_metadata
from groundup.errors import GroundupError


class ShardedFolder(CheckpointFolder):
    """Saves as `CheckpointFolder` does, by all ranks together and in the background.

    The states may hold DTensors, of which each rank writes its own part. `group` is of all ranks,
    for the host's memory, and used by nobody else.
    """

    def __init__(
        self, *settings: Any, group: distributed.ProcessGroup | None = None, **named: Any
    ) -> None:
        super().__init__(*settings, **named)
        self._group = group
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
        shared = _shared(model_state)
        model = {name: one for name, one in model_state.items() if name not in shared}
        optimizer, outline = pack_tree(dict(optimizer_state))
        more = {"version": SHARDED_VERSION, "shared": shared, "optimizer": outline}
        record = new_record(step, state, metric, **more)
        leaving = contextlib.ExitStack()
        temporary = self._agree(lambda: leaving.enter_context(self._new_folder(step)))

        def commit(files: dict[str, FileEntry]) -> None:
            write_record(temporary, record, files)
            leaving.close()
            self._drop_old(step)

        file_of = dict.fromkeys(model, 1) | dict.fromkeys(optimizer, 2)
        writer = _Writer(temporary, file_of, commit)
        pending = async_save(
            {**model, **optimizer}, storage_writer=writer, process_group=self._group
        )
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
            rank, (cause, _) = min(error.failures.items())
            number, reason = errno.EIO, str(cause) or type(cause).__name__
            if isinstance(cause, OSError):
                number, reason = cause.errno or number, cause.strerror or reason
            # What was written goes, as it does where an error is raised within a block.
            with leaving:
                raise OSError(number, f"rank {rank}: {reason}", str(destination)) from error

    def _agree(self, make: Callable[[], Any]) -> Any:
        """What the first rank makes, or its error, on every rank."""
        answer: list[Any] = [None]
        if distributed.get_rank(self._group) == 0:
            try:
                answer = [make()]
            except (OSError, GroundupError) as error:
                answer = [error]
        distributed.broadcast_object_list(answer, src=0, group=self._group)
        if isinstance(answer[0], Exception):
            raise answer[0]
        return answer[0]


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
    notes = checkpoint.record.optimizer or read_metadata(checkpoint.path / OPTIMIZER_NAME)
    state = checkpoint.optimizer_tree(empty, notes)
    for index, values in state["state"].items():
        tensors = {key: one for key, one in values.items() if isinstance(one, Tensor)}
        values.update({key: place(index, one) for key, one in tensors.items()})
    model = {name: one for name, one in model_state.items() if name in stored}
    load({**model, **pack(state)[1]}, storage_reader=reader, process_group=group)
    for values in state["state"].values():
        values.update({key: _local(one) for key, one in values.items()})
    return state


class _Writer(HuggingFaceStorageWriter):
    """One rank's files of a checkpoint, hashed, and on the first rank the end of it."""

    def __init__(
        self, folder: Path, file_of: dict[str, int], commit: Callable[[dict[str, FileEntry]], None]
    ) -> None:
        super().__init__(str(folder), file_of, save_distributed=True)
        self._folder, self._commit = folder, commit

    def write_data(self, *plans: Any) -> torch.futures.Future[list[WriteResult]]:
        results = super().write_data(*plans).wait()
        names = {result.storage_data.relative_path for result in results}
        files = {name: FileEntry.of(self._folder / name) for name in names}
        done: torch.futures.Future[list[WriteResult]] = torch.futures.Future()
        done.set_result([dataclasses.replace(one, storage_data=files) for one in results])
        return done

    def finish(self, metadata: Any, results: list[list[WriteResult]]) -> None:
        self._commit({k: v for one in results for k, v in one[0].storage_data.items()})


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
