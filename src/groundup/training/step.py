"""One optimizer step: micro-batches, the norm of the gradients, the update or none at all.

A step is queued on the device and its figures are read when they have arrived, so that a GPU never
waits for the host. A loss or gradient that is not finite leaves weights and optimizer as they were.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from groundup.data.batches.loader import Batch
from groundup.model import TransformerLM
from groundup.optim.base import Optimizer
from groundup.optim.clipping import clip_scale, gradient_norm


@dataclass(frozen=True, slots=True)
class StepFigures:
    """What a step gave."""

    loss: float
    """Mean over all tokens of the batch; with z-loss it is part of it."""
    gradient_norm: float
    """Before clipping."""
    is_skipped: bool

    @property
    def reason(self) -> str:
        """Why the step was skipped."""
        figures = {"loss": self.loss, "gradient norm": self.gradient_norm}
        bad = [f"the {name} is {value}" for name, value in figures.items() if not _is_finite(value)]
        return " and ".join(bad)


@dataclass(frozen=True, slots=True)
class QueuedStep:
    """A step that the device may still be busy with."""

    step: int
    """Its number, counted from 1."""
    _figures: Tensor
    _arrived: torch.cuda.Event | None

    def read(self) -> StepFigures:
        """Wait for the figures, if need be."""
        if self._arrived is not None:
            self._arrived.synchronize()
        loss, norm, is_skipped = self._figures.tolist()
        return StepFigures(loss, norm, bool(is_skipped))


def train_step(
    model: TransformerLM,
    optimizer: Optimizer,
    batch: Batch,
    *,
    clip_norm: float | None = None,
    z_loss: float = 0.0,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> QueuedStep:
    """Learn from one batch, whatever its micro-batches: each adds its share of the mean loss.

    The gradients are scaled down to `clip_norm` on the way into the optimizer.
    """
    figures = compute_step(
        model, optimizer, batch, clip_norm=clip_norm, z_loss=z_loss, autocast=autocast
    )
    return queue_figures(batch.step + 1, figures)


def compute_step(
    model: TransformerLM,
    optimizer: Optimizer,
    batch: Batch,
    *,
    clip_norm: float | None,
    z_loss: float,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> Tensor:
    """The work of a step on the device; its loss, gradient norm and whether it was skipped."""
    num_tokens = batch.targets.numel()
    loss = torch.zeros((), device=batch.targets.device)
    for inputs, targets in batch.micro_batches():
        with autocast():
            share = model.loss(inputs, targets, z_loss, reduction="sum") / num_tokens
        share.backward()  # type: ignore[no-untyped-call]
        loss += share.detach()
    norm = gradient_norm(model.parameters())
    is_bad = ~(torch.isfinite(loss) & torch.isfinite(norm))
    scale = None if clip_norm is None else clip_scale(norm, clip_norm)
    optimizer.step(gradient_scale=scale, skip=is_bad)
    optimizer.zero_grad(set_to_none=True)
    return torch.stack([loss, norm, is_bad.float()])


def queue_figures(step: int, figures: Tensor) -> QueuedStep:
    """Send the figures on their way to the host."""
    if figures.device.type != "cuda":
        return QueuedStep(step, figures.cpu(), None)
    # A copy to pinned memory and an event behind it: reading waits for this step alone, not for
    # the ones queued since.
    on_host = figures.to("cpu", non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record(torch.cuda.current_stream(figures.device))
    return QueuedStep(step, on_host, arrived)


def _is_finite(value: float) -> bool:
    return value - value == 0.0
