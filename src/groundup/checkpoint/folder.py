"""The checkpoints of a run: written whole, verified on loading, the last few and the best kept.

    checkpoints/step_000100/{model.safetensors, optimizer.safetensors, state.json}

A kill or a full disk at any instant leaves the last good one loadable. When to save, and what the
state means, is left to `training`.
"""

import contextlib
import errno
import logging
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from groundup.checkpoint.record import (
    MODEL_NAME,
    OPTIMIZER_NAME,
    Checkpoint,
    FileEntry,
    Record,
    check_files,
    open_checkpoint,
    read_record,
    write_record,
)
from groundup.checkpoint.state_tree import pack, pack_tree
from groundup.checkpoint.weights import save_weights
from groundup.errors import CheckpointError, ConfigError
from groundup.files import atomic_folder, discard_folder, find_folders

_STEP_NAME = re.compile(r"step_(0\d{5}|[1-9]\d{5,})", re.ASCII)

_log = logging.getLogger(__name__)


class CheckpointFolder:
    """Saves and finds the checkpoints in one folder, which is made at the first save."""

    def __init__(
        self, path: str | os.PathLike[str], keep_last: int | None = 3, keep_best: bool = True
    ) -> None:
        """Keep the `keep_last` latest steps (None: all) and the one with the lowest metric."""
        if keep_last is not None and keep_last < 1:
            raise ConfigError(f"keep_last is {keep_last}, but at least 1 checkpoint must be kept")
        self.path = Path(path)
        self.keep_last = keep_last
        self.keep_best = keep_best

    def prepare(self, work: Callable[[], None]) -> None:
        """Do what has to come before a save; of several ranks the first does it for all."""
        work()

    def save(
        self,
        step: int,
        model_state: Mapping[str, Tensor],
        optimizer_state: Mapping[str, Any],
        state: Mapping[str, Any],
        metric: float | None = None,
    ) -> Path:
        """Write the checkpoint of a step, replacing one that is there, and drop what is too old.

        model_state, optimizer_state: what `state_dict()` gives. state: JSON values of the caller.
        metric: what the best checkpoint has the least of; None, or not finite, is never the best.
        An OSError (a full disk, say) names the checkpoint; everything that was there before is
        still there then.
        """
        record = new_record(step, state, metric)
        optimizer, outline = pack_tree(dict(optimizer_state))
        with self._new_folder(step, [*model_state.values(), *optimizer.values()]) as temporary:
            save_weights(temporary / MODEL_NAME, model_state)
            save_weights(temporary / OPTIMIZER_NAME, optimizer, outline)
            names = MODEL_NAME, OPTIMIZER_NAME
            complete(temporary, record, {name: FileEntry.of(temporary / name) for name in names})
        self._drop_old(step)
        return self.path_of(step)

    def finish(self) -> None:
        """Wait until what `save` began is written, where it writes in the background."""

    def steps(self) -> list[int]:
        """All steps with a checkpoint, ascending; whether they are whole is seen on loading."""
        return sorted(self._folders())

    def path_of(self, step: int) -> Path:
        """The folder of a step's checkpoint, whether it is there or not."""
        return self.path / f"step_{step:06d}"

    def load(self, step: int) -> Checkpoint:
        """The checkpoint of one step, verified."""
        folders = self._folders()
        if step not in folders:
            known = ", ".join(map(str, sorted(folders))) or "none"
            raise CheckpointError(f"{self.path} has no checkpoint of step {step}: there is {known}")
        return open_checkpoint(folders[step], step)

    def newest(self) -> Checkpoint:
        """The latest checkpoint that is whole; the log names those passed over, and why."""
        return self._first_whole(lambda: reversed(self.steps()))

    def best(self) -> Checkpoint:
        """The one with the lowest metric, the later of equals, others skipped as by `newest`."""
        for complaint in self._records()[1]:
            _log.warning("%s; it is left out of the search for the best checkpoint", complaint)
        return self._first_whole(lambda: _by_metric(self._records()[0]))

    def _folders(self) -> dict[int, Path]:
        found = find_folders(self.path).items()
        return {int(name[5:]): path for name, path in found if _STEP_NAME.fullmatch(name)}

    @contextlib.contextmanager
    def _new_folder(self, step: int, tensors: Iterable[Tensor]) -> Iterator[Path]:
        """A folder to fill, which is in its place when the block ends well."""
        destination = self.path_of(step)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            num_bytes = sum(one.numel() * one.element_size() for one in tensors)
            usage = shutil.disk_usage(self.path)
            if usage.total > 0 and usage.free < num_bytes:
                raise OSError(
                    errno.ENOSPC,
                    f"{os.strerror(errno.ENOSPC)}: the checkpoint needs {num_bytes:,} bytes and "
                    f"{usage.free:,} are free",
                )
            with atomic_folder(destination) as temporary:
                yield temporary
        except OSError as error:
            reason = error.strerror or str(error)
            raise OSError(error.errno or errno.EIO, reason, str(destination)) from error

    def _drop_old(self, just_saved: int) -> None:
        if self.keep_last is None:
            return
        # What cannot be read now is neither counted nor removed: it may be the best one. The one
        # just saved is known to be whole; of later ones only the sizes are.
        try:
            records, _ = self._records()
            kept = {*list(records)[-self.keep_last :], just_saved}
            if self.keep_best:
                kept.update(_by_metric(records)[:1])
            for step in sorted(records.keys() - kept):
                discard_folder(self.path_of(step))
        except OSError as error:
            # This costs space and no more; the next save tries again.
            _log.warning("old checkpoints in %s cannot be removed: %s", self.path, error.strerror)

    def _first_whole(self, list_steps: Callable[[], Iterable[int]]) -> Checkpoint:
        while True:
            complaints: list[str] = []
            is_changing = False
            for step in list_steps():
                try:
                    checkpoint = self.load(step)
                except CheckpointError as error:
                    # One that a running writer removed meanwhile is not damage.
                    is_gone = step not in self._folders()
                    is_changing |= is_gone
                    complaints += [] if is_gone else [str(error)]
                    continue
                for complaint in complaints:
                    _log.warning("%s; using %s instead", complaint, checkpoint.path)
                return checkpoint
            if is_changing:
                continue
            if complaints:
                raise CheckpointError(
                    f"none of the {len(complaints)} checkpoints in {self.path} can be used: "
                    f"{'; '.join(complaints)}; restore one from a copy or start the run anew"
                )
            lack = "checkpoint with a metric" if self.steps() else "checkpoint"
            raise CheckpointError(
                f"{self.path} has no {lack}: check the path, or start the run without resuming"
            )

    def _records(self) -> tuple[dict[int, Record], list[str]]:
        """By step, of those that are whole as far as their sizes tell; complaints of the others."""
        records: dict[int, Record] = {}
        complaints: list[str] = []
        for step, path in sorted(self._folders().items()):
            try:
                record = read_record(path, step)
                check_files(path, record, contents=False)
                records[step] = record
            except CheckpointError as error:
                complaints.append(str(error))
        return records, complaints


def new_record(step: int, state: Mapping[str, Any], metric: float | None, **more: Any) -> Record:
    """A record without its files."""
    if step < 0:
        raise CheckpointError(f"the step is {step}, but steps are counted from 0")
    metric = float(metric) if metric is not None and math.isfinite(metric) else None
    skeleton, tensors = pack(dict(state))
    if tensors:
        raise CheckpointError(
            f"the state holds tensors ({', '.join(tensors)}), which state.json cannot: put them "
            f"into the model's or the optimizer's state"
        )
    return Record(step=step, metric=metric, files={}, state=skeleton, **more)


def complete(temporary: Path, record: Record, files: Mapping[str, FileEntry]) -> None:
    """Write the record, and look once more before an older checkpoint may be replaced."""
    record = record.model_copy(update={"files": dict(files)})
    write_record(temporary, record)
    try:
        if read_record(temporary, record.step) != record:
            raise CheckpointError(f"{temporary} is not what was written to it")
        check_files(temporary, record, contents=False)
    except CheckpointError as error:
        raise OSError(errno.EIO, str(error)) from error


def _by_metric(records: Mapping[int, Record]) -> list[int]:
    """The steps that have a metric, from the lowest; of equal ones the later first."""
    metrics = {step: one.metric for step, one in records.items() if one.metric is not None}
    return sorted(metrics, key=lambda step: (metrics[step], -step))
