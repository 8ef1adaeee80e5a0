"""One optimizer step: micro-batches, the norm of the gradients, the update or none at all.

A step is queued on the device and its results are read when they have arrived, so that a GPU never
waits for the host. A loss or gradient that is not finite leaves weights and optimizer as they were.
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from groundup.data.batches.loader import Batch
from groundup.distributed.process_group import ALONE, World, note_arrival
from groundup.distributed.reduction import Accumulated, Reduction
from groundup.model import TransformerLM
from groundup.nn.linear_cross_entropy import linear_cross_entropy
from groundup.optim.base import Optimizer
from groundup.optim.build import set_learning_rates
from groundup.optim.clipping import clip_scale
from groundup.runs.config import RunConfig
from groundup.training.execution import autocast as run_autocast
from groundup.training.own_parts import Loss

_ONE_PROCESS = Accumulated()

# The part of a run over which `multi_token_weight` falls to 0.
_MULTI_TOKEN_PART = 0.6

# Steps before one is recorded: everything is compiled and warm by then.
_PLAIN_STEPS = 3


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gave."""

    loss: float
    """Mean over all tokens of the batch, z-loss included."""
    gradient_norm: float
    """Before clipping."""
    is_skipped: bool

    @property
    def reason(self) -> str:
        """Why the step was skipped."""
        values = {"loss": self.loss, "gradient norm": self.gradient_norm}
        bad = [f"the {name} is {value}" for name, value in values.items() if value - value != 0.0]
        return " and ".join(bad)


@dataclass(frozen=True, slots=True)
class QueuedStep:
    """A step that the device may still be busy with."""

    step: int
    """Its number, counted from 1."""
    _result: Tensor
    _arrived: torch.cuda.Event | None

    def read(self) -> StepResult:
        """Wait for the result, if need be."""
        if self._arrived is not None:
            self._arrived.synchronize()
        loss, norm, is_skipped = self._result.tolist()
        return StepResult(loss, norm, bool(is_skipped))


def choose_step(
    config: RunConfig,
    model: TransformerLM,
    optimizer: Optimizer,
    loss: Loss | None = None,
    reduction: Reduction = _ONE_PROCESS,
) -> Callable[[Batch], QueuedStep]:
    """The step of a run, which sets what changes from step to step first: the learning rates and
    what the token after the next counts.

    It is recorded where the settings and the device allow it. With a `loss` that one is learned by.
    """
    later_weight = torch.zeros((), device=model.device) if config.multi_token_weight else None
    options: dict[str, Any] = {
        "clip_norm": config.clip_norm,
        "z_loss": config.z_loss,
        "later_weight": later_weight,
        "autocast": functools.partial(run_autocast, config),
        "loss": loss,
        "reduction": reduction,
    }
    # SGD's learning rate depends on a count that the host keeps, and conversations have as many
    # targets as there are answers: a recorded step has one shape, and one process.
    is_fixed = config.optimizer.name != "sgd" and not config.tuning.chats
    is_fixed &= reduction.world.size == 1
    can_record = config.device.startswith("cuda") and is_fixed
    take: Callable[[Batch], QueuedStep] = (
        GraphedStep(model, optimizer, **options)
        if config.cuda_graph and can_record
        else functools.partial(train_step, model, optimizer, **options)
    )

    def step(batch: Batch) -> QueuedStep:
        set_learning_rates(
            optimizer, config.optimizer, config.schedule, batch.step, config.num_steps
        )
        if later_weight is not None:
            left = 1 - batch.step / (_MULTI_TOKEN_PART * config.num_steps)
            later_weight.fill_(config.multi_token_weight * max(0.0, left))
        return take(batch)

    return step


def train_step(
    model: TransformerLM,
    optimizer: Optimizer,
    batch: Batch,
    *,
    clip_norm: float | None = None,
    z_loss: float = 0.0,
    later_weight: Tensor | None = None,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    loss: Loss | None = None,
    reduction: Reduction = _ONE_PROCESS,
) -> QueuedStep:
    """Learn from one batch: g = ∇ mean loss, summed over micro-batches; θ ← optimizer(θ, s·g).

    `clip_norm` sets s = min(1, clip_norm / |g|), `z_loss` the weight of that loss, `later_weight`
    what the token after the next counts in g; the forward pass runs within `autocast()`. `loss`
    takes the place of the cross-entropy, `reduction` that of a sum in one process.
    """
    result = compute_step(
        model,
        optimizer,
        batch,
        clip_norm=clip_norm,
        z_loss=z_loss,
        later_weight=later_weight,
        autocast=autocast,
        loss=loss,
        reduction=reduction,
    )
    return _queue_result(batch.step + 1, result)


def compute_step(
    model: TransformerLM,
    optimizer: Optimizer,
    batch: Batch,
    *,
    clip_norm: float | None,
    z_loss: float,
    later_weight: Tensor | None = None,
    autocast: Callable[[], AbstractContextManager[Any]],
    loss: Loss | None = None,
    reduction: Reduction = _ONE_PROCESS,
) -> Tensor:
    """The work of a step on the device; its loss, gradient norm and whether it was skipped.

    model, optimizer: what learns, and how; updated in place.
    batch: the sequences of the step, in micro-batches.
    clip_norm: the greatest gradient norm; None never clips.
    z_loss: the weight of the squared logsumexp in the loss.
    later_weight: as in `TransformerLM.loss`.
    autocast: what the forward passes run within.
    loss: the mean loss of a model, inputs and targets; the cross-entropy if None.
    reduction: how gradients are summed over micro-batches and ranks.
    """
    world = reduction.world
    num_tokens = count_targets(batch, world)
    micro_batches = batch.micro_batches()
    parameters = list(model.parameters())

    def backward(index: int) -> Tensor:
        micro_batch = micro_batches[index]
        inputs, targets = micro_batch.inputs, micro_batch.targets
        with autocast():
            if loss is None:
                part = summed_loss(model, micro_batch, z_loss, later_weight) / num_tokens
            else:
                fraction = targets.numel() / (batch.targets.numel() * world.size)
                part = loss(model, inputs, targets) * fraction
        part.backward()  # type: ignore[no-untyped-call]
        if index == len(micro_batches) - 1:
            note_arrival(world, batch.step + 1)
        return part.detach()

    total = reduction.sum_gradients(parameters, len(micro_batches), backward)
    norm = reduction.gradient_norm(parameters)
    is_bad = ~(torch.isfinite(total) & torch.isfinite(norm))
    scale = None if clip_norm is None else clip_scale(norm, clip_norm)
    optimizer.step(gradient_scale=scale, skip=is_bad)
    optimizer.zero_grad(set_to_none=True)
    return torch.stack([total, norm, is_bad.float()])


def summed_loss(
    model: TransformerLM, batch: Batch, z_loss: float = 0.0, later_weight: Tensor | None = None
) -> Tensor:
    """The sum of the losses of all targets; in rows of several sequences, of those that count.

    There no token attends to another sequence, and the output layer sees only what is to be
    learned.

    model: what predicts.
    batch: inputs, targets and, for rows of several sequences, positions.
    z_loss: as in `TransformerLM.loss`.
    later_weight: as there; not for rows of several sequences.
    """
    if batch.positions is None:
        return model.loss(batch.inputs, batch.targets, z_loss, "sum", later_weight)
    places = torch.arange(batch.positions.shape[-1], device=batch.positions.device)
    hidden = model.hidden(batch.inputs, starts=places - batch.positions)
    is_learned = batch.targets >= 0
    return linear_cross_entropy(
        hidden[is_learned],
        model.output_weight,
        batch.targets[is_learned],
        z_loss=z_loss,
        reduction="sum",
    )


def count_targets(batch: Batch, world: World = ALONE) -> int | Tensor:
    """How many targets `summed_loss` sums over, on all ranks together.

    batch: the rank's.
    world: whose ranks have batches of the same shape.
    """
    if batch.positions is None:
        return batch.targets.numel() * world.size
    count = (batch.targets >= 0).sum()
    return count if world.size == 1 else sum(world.gather(int(count)))


class GraphedStep:
    """`train_step` on CUDA as one recorded graph, replayed: the host queues a step in one call.

    The first steps run as they are; the next one is recorded, which computes nothing, and from
    then on each step is a copy of its batch and a replay, with the same results. Batches have one
    shape. Learning rates are read from the optimizer's groups before each step.
    """

    def __init__(self, model: TransformerLM, optimizer: Optimizer, **options: Any) -> None:
        self._model = model
        self._optimizer = optimizer
        self._options = options
        self._num_plain = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._batch: Batch
        self._result: Tensor
        self._learning_rates: list[Tensor] = []

    def __call__(self, batch: Batch) -> QueuedStep:
        if self._num_plain < _PLAIN_STEPS:
            self._num_plain += 1
            return train_step(self._model, self._optimizer, batch, **self._options)
        if self._graph is None:
            self._graph = self._record(batch)
        self._batch.inputs.copy_(batch.inputs)
        self._batch.targets.copy_(batch.targets)
        for rate, group in zip(self._learning_rates, self._optimizer.param_groups, strict=True):
            rate.fill_(group["lr"])
        self._graph.replay()
        return _queue_result(batch.step + 1, self._result)

    def _record(self, batch: Batch) -> torch.cuda.CUDAGraph:
        device = batch.inputs.device
        self._batch = Batch(
            batch.step, batch.inputs.clone(), batch.targets.clone(), batch.micro_batch_size
        )
        groups = self._optimizer.param_groups
        numbers = [group["lr"] for group in groups]
        self._learning_rates = [torch.tensor(float(rate), device=device) for rate in numbers]
        for group, rate in zip(groups, self._learning_rates, strict=True):
            group["lr"] = rate
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(device)
        # The thread that reads batches ahead keeps using the device meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._result = compute_step(self._model, self._optimizer, self._batch, **self._options)
        for group, number in zip(groups, numbers, strict=True):
            group["lr"] = number
        return graph


def _queue_result(step: int, result: Tensor) -> QueuedStep:
    """Send the result on its way to the host."""
    if result.device.type != "cuda":
        return QueuedStep(step, result.cpu(), None)
    # A copy to pinned memory and an event behind it: reading waits for this step alone, not for
    # the ones queued since.
    on_host = result.to("cpu", non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record(torch.cuda.current_stream(result.device))
    return QueuedStep(step, on_host, arrived)
