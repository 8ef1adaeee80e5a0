"""The checkpoints of a run: written atomically, verified on loading; keeps the latest and the best.

    checkpoints/step_000100/{model.safetensors, optimizer.safetensors, state.json}

After a crash or a full disk, the last good one can be loaded. `training` decides when to save.
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
    """Saves and loads the checkpoints in a folder, which the first save creates.

    Keeps the `keep_last` latest steps (None: all) and, if `keep_best`, the one with the lowest
    metric. `weights_only` skips optimizer states when loading."""

    path: Path
    keep_last: int | None = 3
    keep_best: bool = True
    weights_only: bool = False

    def prepare(self, work: Callable[[], None]) -> None:
        """Run work that must precede a save, on the first rank only."""
        work()

    def save(
        self,
        step: int,
        model_state: Mapping[str, Tensor],
        optimizer_state: Mapping[str, Any],
        state: Mapping[str, Any],
        metric: float | None = None,
    ) -> Path:
        """Write the checkpoint of a step, replacing an existing one, and remove old checkpoints.

        model_state, optimizer_state: from `state_dict()`. state: any JSON values.
        metric: the lowest is the best; None, or a value that is not finite, never is.

        An OSError, such as for a full disk, names the checkpoint and leaves existing ones intact.
        """
        record = new_record(step, state, metric)
        optimizer, outline = pack_tree(dict(optimizer_state))
        with self._new_folder(step) as temporary, ThreadPoolExecutor() as pool:
            save_weights(temporary / MODEL_NAME, model_state)
            # Hash one file while writing the other.
            weights = pool.submit(FileEntry.of, temporary / MODEL_NAME)
            save_weights(temporary / OPTIMIZER_NAME, optimizer, outline)
            rest = FileEntry.of(temporary / OPTIMIZER_NAME)
            write_record(temporary, record, {MODEL_NAME: weights.result(), OPTIMIZER_NAME: rest})
        self._drop_old(step)
        return self.path_of(step)

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints, ascending; their files are checked on loading."""
        return sorted(self._folders())

    def path_of(self, step: int) -> Path:
        """Return the folder of a step's checkpoint, whether or not it exists."""
        return self.path / f"step_{step:06d}"

    def load(self, step: int) -> Checkpoint:
        """Open and verify the checkpoint of a step."""
        folders = self._folders()
        if step not in folders:
            known = ", ".join(map(str, sorted(folders))) or "none"
            raise CheckpointError(f"{self.path} has no checkpoint of step {step}; it has {known}")
        return open_checkpoint(folders[step], step, weights_only=self.weights_only)

    def newest(self) -> Checkpoint:
        """Open the latest intact checkpoint; logs a warning for each damaged one it skips."""
        return self._first_intact(lambda: self.steps()[::-1])

    def best(self) -> Checkpoint:
        """Open the intact checkpoint with the lowest metric; on ties, the latest."""

        def from_best() -> list[int]:
            records = self._records()
            return [*(self._folders().keys() - records.keys()), *_by_metric(records)]

        return self._first_intact(from_best)

    def end_with_best(self) -> int | None:
        """Remove all checkpoints after the best one; returns its step, or None if no checkpoint has
        a metric."""
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
        """Yield a temporary folder, which is renamed when the block ends without an error."""
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
        # An unreadable checkpoint is neither counted nor removed, because it may be the best. Keep
        # the one just saved, which is intact; of later ones only the sizes were checked.
        try:
            records = self._records()
            kept = {*list(records)[-self.keep_last :], just_saved}
            if self.keep_best:
                kept.update(_by_metric(records)[:1])
            for step in sorted(records.keys() - kept):
                discard_folder(self.path_of(step))
        except OSError as error:
            # This only costs disk space, and the next save tries again.
            _log.warning("old checkpoints in %s cannot be removed: %s", self.path, error.strerror)

    def _first_intact(self, list_steps: Callable[[], Iterable[int]]) -> Checkpoint:
        errors: dict[int, str] = {}
        for step in list_steps():
            try:
                checkpoint = self.load(step)
            except CheckpointError as error:
                errors[step] = str(error)
                continue
            for step in errors.keys() & self._folders().keys():
                _log.warning("%s; using %s instead", errors[step], checkpoint.path)
            return checkpoint
        if errors.keys() - self._folders().keys():
            # A concurrent writer has removed one, which is not damage.
            return self._first_intact(list_steps)
        if errors:
            raise CheckpointError(
                f"none of the {len(errors)} checkpoints in {self.path} can be used: "
                f"{'; '.join(errors.values())}; restore one from a backup or start a new run"
            )
        lack = "checkpoint with a metric" if self.steps() else "checkpoint"
        raise CheckpointError(f"{self.path.parent} has no {lack} yet: train until one is written")

    def _records(self) -> dict[int, Record]:
        """Return the records by step, of checkpoints whose files exist with the right sizes."""
        records = {}
        for step, path in sorted(self._folders().items()):
            with contextlib.suppress(CheckpointError):
                record = read_record(path, step)
                check_files(path, record, contents=False)
                records[step] = record
        return records


def _by_metric(records: Mapping[int, Record]) -> list[int]:
    """Return the steps with a metric, lowest metric first; on ties, the latest first."""
    metrics = {step: one.metric for step, one in records.items() if one.metric is not None}
    return sorted(metrics, key=lambda step: (metrics[step], -step))
