"""Everything a run is made of between two steps, and how it goes into a checkpoint and back.

What is not in here (settings, data, the order of batches) is the same in every process that trains
the run, so a state decides all that follows.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from groundup.checkpoint import (
    Checkpoint,
    capture_random_state,
    restore_model,
    restore_optimizer,
    restore_random_state,
)
from groundup.distributed.reduction import Accumulated, Reduction
from groundup.errors import CheckpointError
from groundup.model import TransformerLM
from groundup.nn.adapters import adapted_state, merge_adapters, with_torch_names
from groundup.optim.base import Optimizer

if TYPE_CHECKING:
    from groundup.distributed.sharding import LocalParameters

_METRICS = ("loss", "validation_loss", "bits_per_byte", "best_validation_loss")


@dataclass
class TrainingState:
    """The model, its optimizer and the counters of a run after `step` steps."""

    model: TransformerLM
    optimizer: Optimizer
    tokens_per_step: int
    reduction: Reduction = field(default_factory=Accumulated)
    """Sums gradients over micro-batches and ranks."""
    local: "LocalParameters | None" = None
    """Where ranks share the weights: this rank's rows of them."""
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
    random_state: dict[str, Any] | None = None
    """As it was after the last good step, where steps use it; the present one if not given."""

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

    def whole_model(self) -> TransformerLM:
        """The model, or where ranks share the weights a copy of all of them in the memory of the
        first rank's host; all ranks ask for it, and the others have no use for what they get."""
        if self.local is None:
            return self.model
        from groundup.distributed.sharding import whole_weights

        weights = whole_weights(adapted_state(self.model), self.reduction.world)
        if not self.reduction.world.is_first:
            return self.model
        copy = TransformerLM.from_config(self.model.config, device="cpu")
        copy.load_state_dict(merge_adapters(weights))
        return copy

    def optimizer_state(self) -> dict[str, Any]:
        """What a checkpoint holds of the optimizer."""
        if self.local is None:
            return self.optimizer.state_dict()
        return self.local.state_of(self.optimizer)

    def _restore_model(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """The weights become the checkpoint's; gives its state of the optimizer."""
        if self.local is None:
            restore_model(self.model, with_torch_names(checkpoint.adapted_state()))
            return checkpoint.optimizer_state()
        from groundup.checkpoint.sharded import load_into

        place = self.local.place_for(self.optimizer)
        group = self.reduction.world.host_group
        return load_into(checkpoint, adapted_state(self.model), place, group)

    def counters(self) -> dict[str, Any]:
        """The JSON part of a checkpoint at `last_good_step`: skipped steps behind it are undone."""
        return {
            "tokens": self.last_good_step * self.tokens_per_step,
            "num_skipped": self.num_skipped - self.num_skipped_in_row,
            **{name: getattr(self, name) for name in _METRICS},
            "wall_seconds": self.wall_seconds,
            "random": self.random_state or capture_random_state(self.model.device),
        }

    def restore(self, checkpoint: Checkpoint) -> None:
        """Become what the checkpoint was made of."""
        groups = self.optimizer.param_groups
        options = [{k: v for k, v in group.items() if k != "params"} for group in groups]
        restore_optimizer(self.optimizer, self._restore_model(checkpoint))
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
