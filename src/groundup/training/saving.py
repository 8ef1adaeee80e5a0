"""Checkpoints of a run, and what happens when the disk does not take them.

A checkpoint that cannot be written leaves the last good one as it was; the run continues, tries
again at the next one, and only fails if the last attempt of all did.
"""

import logging
from typing import Any

from groundup.checkpoint import CheckpointFolder
from groundup.errors import GroundupError
from groundup.nn.adapters import adapted_state
from groundup.training.metrics import MetricsWriter
from groundup.training.state import TrainingState

_log = logging.getLogger(__name__)


class Saver:
    """Writes checkpoints behind the metrics that led to them."""

    def __init__(
        self,
        checkpoints: CheckpointFolder,
        metrics: MetricsWriter,
        settings: dict[str, Any],
        saved_step: int | None = None,
    ) -> None:
        self._checkpoints = checkpoints
        self.settings = settings
        self._metrics = metrics
        self._saved_step = saved_step
        self._failure: OSError | None = None
        # Of a checkpoint that is being written: its step, and the one that it follows.
        self._begun: tuple[int, int | None] | None = None

    def save(self, state: TrainingState, metric: float | None = None) -> None:
        """Save the state after its last good step; a failure is logged and remembered."""
        self._finish()
        step = state.last_good_step
        if step == self._saved_step:
            return
        try:
            # A resume takes the records up to its checkpoint from the file, so they come first.
            self._checkpoints.prepare(self._metrics.sync)
            self._checkpoints.save(
                step,
                adapted_state(state.model),
                state.optimizer_state(),
                {**state.counters(), "settings": self.settings},
                metric,
            )
            self._begun = step, self._saved_step
            self._saved_step, self._failure = step, None
        except OSError as error:
            self._fail(step, error)

    def _finish(self) -> None:
        """Wait for a checkpoint that is being written."""
        try:
            self._checkpoints.finish()
        except OSError as error:
            assert self._begun is not None
            step, self._saved_step = self._begun
            self._fail(step, error)

    def _fail(self, step: int, error: OSError) -> None:
        self._failure = error
        _log.error(
            "no checkpoint of step %d: %s; %s, and the next one is tried in its time",
            step,
            _reason(error),
            self._describe_kept(),
        )

    def check(self) -> None:
        """Raise if the latest checkpoint could not be written."""
        self._finish()
        if self._failure is None:
            return
        raise GroundupError(
            f"the last checkpoint could not be written: {_reason(self._failure)}; "
            f"{self._describe_kept()}. Free some space and continue with --resume"
        ) from self._failure

    def _describe_kept(self) -> str:
        step = self._saved_step
        return "there is no earlier one" if step is None else f"the one of step {step} is kept"


def _reason(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {reason}" if error.filename else reason
