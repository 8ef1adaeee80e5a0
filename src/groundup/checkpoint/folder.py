"""The checkpoints of a run: written whole, verified on loading, the last few and the best kept.

    checkpoints/step_000100/{model.safetensors, optimizer.safetensors, state.json}

A kill or a full disk at any instant leaves the last good one loadable. When to save, and what the
state means, is left to `training`.
"""

import contextlib
import errno
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
    new_record,
    open_checkpoint,
    pack_tree,
    read_record,
    write_record,
)
from groundup.checkpoint.weights import save_weights
from groundup.errors import CheckpointError
from groundup.files import atomic_folder, discard_folder, find_folders

_STEP_NAME = re.compile(r"step_(0\d{5}|[1-9]\d{5,})", re.ASCII)

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class CheckpointFolder:
    """Saves and finds the checkpoints in one folder, which is made at the first save.

    It keeps the `keep_last` latest steps (None: all) and the one with the lowest metric; with
    `weights_only` it loads no state of optimizers."""

    path: Path
    keep_last: int | None = 3
    keep_best: bool = True
    weights_only: bool = False

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

        The states are those of `state_dict()`, and JSON values of the caller. The best checkpoint
        has the least `metric`; None, or one that is not finite, is never the best. An OSError (a
        full disk, say) names the checkpoint; everything that was there before is still there then.
        """
        record = new_record(step, state, metric)
        optimizer, outline = pack_tree(dict(optimizer_state))
        with self._new_folder(step) as temporary, ThreadPoolExecutor() as pool:
            save_weights(temporary / MODEL_NAME, model_state)
            # One file is hashed while the other is written.
            weights = pool.submit(FileEntry.of, temporary / MODEL_NAME)
            save_weights(temporary / OPTIMIZER_NAME, optimizer, outline)
            rest = FileEntry.of(temporary / OPTIMIZER_NAME)
            write_record(temporary, record, {MODEL_NAME: weights.result(), OPTIMIZER_NAME: rest})
        self._drop_old(step)
        return self.path_of(step)

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
        return open_checkpoint(folders[step], step, weights_only=self.weights_only)

    def newest(self) -> Checkpoint:
        """The latest checkpoint that is whole; the log names those passed over, and why."""
        return self._first_whole(lambda: self.steps()[::-1])

    def best(self) -> Checkpoint:
        """The one with the lowest metric, the later of equals, others skipped as by `newest`."""

        def from_best() -> list[int]:
            records = self._records()
            return [*(self._folders().keys() - records.keys()), *_by_metric(records)]

        return self._first_whole(from_best)

    def end_with_best(self) -> int | None:
        """Remove the checkpoints after the one with the lowest metric; its step, None if no
        checkpoint has a metric."""
        records = self._records()
        best = next(iter(_by_metric(records)), None)
        for step in records:
            if best is not None and step > best:
                discard_folder(self.path_of(step))
        return best

    def _folders(self) -> dict[int, Path]:
        found = find_folders(self.path).items()
        return {int(name[5:]): path for name, path in found if _STEP_NAME.fullmatch(name)}

    @contextlib.contextmanager
    def _new_folder(self, step: int) -> Iterator[Path]:
        """A folder to fill, which is in its place when the block ends well."""
        destination = self.path_of(step)
        try:
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
            records = self._records()
            kept = {*list(records)[-self.keep_last :], just_saved}
            if self.keep_best:
                kept.update(_by_metric(records)[:1])
            for step in sorted(records.keys() - kept):
                discard_folder(self.path_of(step))
        except OSError as error:
            # This costs space and no more; the next save tries again.
            _log.warning("old checkpoints in %s cannot be removed: %s", self.path, error.strerror)

    def _first_whole(self, list_steps: Callable[[], Iterable[int]]) -> Checkpoint:
        complaints: dict[int, str] = {}
        for step in list_steps():
            try:
                checkpoint = self.load(step)
            except CheckpointError as error:
                complaints[step] = str(error)
                continue
            for passed in complaints.keys() & self._folders().keys():
                _log.warning("%s; using %s instead", complaints[passed], checkpoint.path)
            return checkpoint
        if complaints.keys() - self._folders().keys():
            # A running writer removed one meanwhile, which is no damage.
            return self._first_whole(list_steps)
        if complaints:
            raise CheckpointError(
                f"none of the {len(complaints)} checkpoints in {self.path} can be used: "
                f"{'; '.join(complaints.values())}; restore one from a copy or start the run anew"
            )
        lack = "checkpoint with a metric" if self.steps() else "checkpoint"
        raise CheckpointError(
            f"{self.path} has no {lack}: check the path, or start the run without resuming"
        )

    def _records(self) -> dict[int, Record]:
        """By step, of those that are whole as far as their sizes tell."""
        records = {}
        for step, path in sorted(self._folders().items()):
            with contextlib.suppress(CheckpointError):
                record = read_record(path, step)
                check_files(path, record, contents=False)
                records[step] = record
        return records


def _by_metric(records: Mapping[int, Record]) -> list[int]:
    """The steps that have a metric, from the lowest; of equal ones the later first."""
    metrics = {step: one.metric for step, one in records.items() if one.metric is not None}
    return sorted(metrics, key=lambda step: (metrics[step], -step))
