"""Everything a run is made of between two steps, and how it goes into a checkpoint and back.

What is not in here (settings, data, the order of batches) is the same in every process that trains
the run, so a state decides all that follows.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from groundup.checkpoint import (
    Checkpoint,
    capture_random_state,
    restore_model,
    restore_optimizer,
    restore_random_state,
)
from groundup.errors import CheckpointError
from groundup.model import TransformerLM
from groundup.nn.adapters import with_torch_names
from groundup.optim.base import Optimizer

_METRICS = ("loss", "validation_loss", "bits_per_byte", "best_validation_loss")


@dataclass
class TrainingState:
    """The model, its optimizer and the counters of a run after `step` steps."""

    model: TransformerLM
    optimizer: Optimizer
    tokens_per_step: int
    step: int = 0
    num_skipped: int = 0
    """Steps whose loss or gradients were not finite."""
    num_skipped_in_row: int = 0
    """How many of them are the latest."""
    loss: float | None = None
    """Of the latest step that was not skipped."""
    validation_loss: float | None = None
    bits_per_byte: float | None = None
    best_validation_loss: float | None = None
    wall_seconds: float = 0.0

    @property
    def tokens(self) -> int:
        return self.step * self.tokens_per_step

    @property
    def last_good_step(self) -> int:
        """The latest step that changed the weights: what a checkpoint is a state of."""
        return self.step - self.num_skipped_in_row

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Within it the weights are their averages, if the optimizer keeps any.

        Averages are what is evaluated, sampled and saved; the latest weights wait in their place.
        """
        self.optimizer.exchange_averages()
        try:
            yield
        finally:
            self.optimizer.exchange_averages()

    def count_step(self, loss: float, is_skipped: bool) -> None:
        """Note the outcome of one more step."""
        self.step += 1
        if is_skipped:
            self.num_skipped += 1
            self.num_skipped_in_row += 1
        else:
            self.num_skipped_in_row = 0
            self.loss = loss

    def note_validation(self, loss: float, bits_per_byte: float | None) -> None:
        """Note the outcome of an evaluation."""
        self.validation_loss, self.bits_per_byte = loss, bits_per_byte
        if self.best_validation_loss is None or loss < self.best_validation_loss:
            self.best_validation_loss = loss

    def counters(self) -> dict[str, Any]:
        """The JSON part of a checkpoint at `last_good_step`: skipped steps behind it are undone."""
        return {
            "tokens": self.last_good_step * self.tokens_per_step,
            "num_skipped": self.num_skipped - self.num_skipped_in_row,
            **{name: getattr(self, name) for name in _METRICS},
            "wall_seconds": self.wall_seconds,
            "random": capture_random_state(self.model.output_weight.device),
        }

    def restore(self, checkpoint: Checkpoint) -> None:
        """Become what the checkpoint was made of."""
        restore_model(self.model, with_torch_names(checkpoint.adapted_state()))
        groups = self.optimizer.param_groups
        options = [{k: v for k, v in group.items() if k != "params"} for group in groups]
        restore_optimizer(self.optimizer, checkpoint.optimizer_state())
        # The settings decide over learning rate and weight decay, also where they have changed.
        for group, own in zip(self.optimizer.param_groups, options, strict=True):
            group.update(own)
        self.optimizer.exchange_averages()
        if self.optimizer.average_decay is None:
            for state in self.optimizer.state.values():
                state.pop("average", None)
        counters = checkpoint.state
        self.step = checkpoint.step
        self.num_skipped_in_row = 0
        try:
            self.num_skipped = int(counters["num_skipped"])
            for name in _METRICS:
                setattr(self, name, counters[name])
            self.wall_seconds = float(counters["wall_seconds"])
            restore_random_state(counters["random"])
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            raise CheckpointError(
                f"{checkpoint.path} does not hold the state of a run ({error!r}): it cannot be "
                f"resumed"
            ) from error
