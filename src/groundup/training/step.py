"""One optimizer step: gradient accumulation over micro-batches, clipping, and the update.

A step is queued on the device and its results are read later, so that a GPU never waits for the
host. A loss or gradient that is not finite leaves weights and optimizer unchanged.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from groundup.data.batches.loader import Batch
from groundup.distributed.process_group import ONE_PROCESS, ProcessGroup
from groundup.model import TransformerLM
from groundup.nn.linear_cross_entropy import linear_cross_entropy
from groundup.optim.base import ForeignOptimizer
from groundup.optim.build import average_decay, set_learning_rates
from groundup.optim.clipping import clip_scale
from groundup.optim.schedules import learning_rate_factor
from groundup.runs.config import RunConfig
from groundup.training.clock import Tick
from groundup.training.machine import autocast
from groundup.training.preference import find_pairs, packed_hidden, preference_sums
from groundup.training.start import Loss, Schedule
from groundup.training.state import TrainingState

# The fraction of a run over which `multi_token_weight` decays to 0.
_MULTI_TOKEN_PART = 0.6
# Steps before a CUDA graph is recorded, to compile and warm up.
_PLAIN_STEPS = 3


class StepResult(NamedTuple):
    """The mean loss of the batch with z-loss, the gradient norm before clipping, and whether either
    was not finite."""

    loss: float
    gradient_norm: float
    is_skipped: bool


class QueuedStep:
    """A step that the device may still be computing."""

    def __init__(self, tick: Tick, learning_rate: float, result: Tensor) -> None:
        self.tick, self.learning_rate = tick, learning_rate
        is_cuda = result.device.type == "cuda"
        # On CUDA an event after the copy to pinned memory: reading waits only for this step, not
        # for later ones.
        self._result = result.to("cpu", non_blocking=is_cuda)
        self._arrived = torch.cuda.Event() if is_cuda else None  # type: ignore[no-untyped-call]
        if self._arrived is not None:
            self._arrived.record(torch.cuda.current_stream(result.device))

    def read(self) -> StepResult:
        """Wait for the result."""
        if self._arrived is not None:
            self._arrived.synchronize()
        loss, norm, is_skipped = self._result.tolist()
        return StepResult(loss, norm, bool(is_skipped))


class Step:
    """g = ∇ mean loss, summed over micro-batches; θ ← optimizer(θ, s·g) with
    s = min(1, max_grad_norm / |g|).

    A single CUDA process records a step as a graph and replays it. What changes from step to step
    (learning rates, the multi-token weight, the EMA of a timed run) is read from device tensors.
    """

    def __init__(
        self,
        config: RunConfig,
        state: TrainingState,
        loss: Loss | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        self._config, self._loss, self._schedule = config, loss, schedule
        self._model, self._optimizer = state.model, state.optimizer
        self._reduction, self._preference = state.reduction, state.preference
        device = state.model.device
        is_cuda = device.type == "cuda"
        self._multi_token_weight = (
            torch.zeros((), device=device) if config.multi_token_weight else None
        )
        has_moving_decay = is_cuda and config.minutes is not None
        self._average_decay = torch.zeros((), device=device) if has_moving_decay else None
        is_foreign = isinstance(state.optimizer, ForeignOptimizer)
        for group in state.optimizer.param_groups:
            # Floats and tensors round differently, and a graph can only read tensors: with floats
            # before the graph, a resumed run would have other bits.
            if is_cuda and not is_foreign and not isinstance(group["lr"], Tensor):
                group["lr"] = torch.tensor(float(group["lr"]), device=device)
        # Gathering weights and asking the host cannot be recorded. The number of targets in
        # conversations varies, but a graph has one shape.
        is_alone = state.local is None and state.reduction.ranks.size == 1
        is_fixed = is_alone and not is_foreign and not config.tuning.chats
        self._is_recorded = is_cuda and is_fixed and config.cuda_graph
        self._num_plain = 0
        self.num_updates = 0
        """Weight updates, including one under way."""
        self._graph: torch.cuda.CUDAGraph | None = None
        self._batch: Batch
        self._result: Tensor

    def __call__(self, batch: Batch, tick: Tick) -> QueuedStep:
        rate = self._set_numbers(tick)
        if not self._is_recorded or self._num_plain < _PLAIN_STEPS:
            self._num_plain += 1
            return QueuedStep(tick, rate, self._compute(batch))
        if self._graph is None:
            self._graph = self._record(batch)
        self._batch.inputs.copy_(batch.inputs)
        self._batch.targets.copy_(batch.targets)
        self._graph.replay()
        return QueuedStep(tick, rate, self._result)

    def _set_numbers(self, tick: Tick) -> float:
        """Set what depends on the progress; returns the learning rate."""
        config, optimizer = self._config, self._optimizer
        if self._multi_token_weight is not None:
            left = 1 - tick.position / (_MULTI_TOKEN_PART * tick.length)
            self._multi_token_weight.fill_(config.multi_token_weight * max(0.0, left))
        decay = average_decay(config.optimizer, tick.length, tick.delta)
        optimizer.average_decay = decay
        if self._average_decay is not None and decay is not None:
            optimizer.average_decay = self._average_decay.fill_(decay)
        if self._schedule is not None:
            factor = float(self._schedule((tick.position + tick.delta / 2) / tick.length))
        else:
            factor = learning_rate_factor(config.schedule, tick.position, tick.delta, tick.length)
        return set_learning_rates(optimizer, config.optimizer, factor)

    def _compute(self, batch: Batch) -> Tensor:
        """Queue the step; returns loss, gradient norm and whether it was skipped, as a tensor."""
        model, ranks = self._model, self._reduction.ranks
        num_tokens = count_targets(batch, ranks)
        micro_batches = batch.micro_batches()
        parameters = list(model.parameters())

        def backward(index: int) -> Tensor:
            part = micro_batches[index]
            with autocast(self._config):
                if self._preference is not None:
                    loss = preference_sums(model, part, self._preference)[0] / num_tokens
                elif self._loss is None:
                    loss = summed_loss(model, part, self._config.z_loss, self._multi_token_weight)
                    loss = loss / num_tokens
                else:
                    fraction = part.targets.numel() / (batch.targets.numel() * ranks.size)
                    loss = self._loss(model, part.inputs, part.targets) * fraction
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach()

        total = self._reduction.sum_gradients(parameters, len(micro_batches), backward)
        norm = self._reduction.gradient_norm(parameters)
        is_bad = ~(torch.isfinite(total) & torch.isfinite(norm))
        limit = self._config.max_grad_norm
        scale = None if limit is None else clip_scale(norm, limit)
        self.num_updates += 1
        self._optimizer.step(gradient_scale=scale, skip=is_bad)
        self._optimizer.zero_grad(set_to_none=True)
        return torch.stack([total, norm, is_bad.float()])

    def _record(self, batch: Batch) -> torch.cuda.CUDAGraph:
        self._batch = Batch(
            batch.step, batch.inputs.clone(), batch.targets.clone(), batch.micro_batch_size
        )
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(batch.inputs.device)
        # The prefetching thread uses the device concurrently.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._result = self._compute(self._batch)
        return graph


def summed_loss(
    model: TransformerLM,
    batch: Batch,
    z_loss: float = 0.0,
    multi_token_weight: Tensor | None = None,
) -> Tensor:
    """The sum of the losses of all targets. In packed rows, tokens attend only to their own
    sequence, and only the targets of answers count. `z_loss`, `multi_token_weight`: as in
    `TransformerLM.loss`.
    """
    if batch.positions is None:
        return model.loss(batch.inputs, batch.targets, z_loss, "sum", multi_token_weight)
    is_learned = batch.targets >= 0
    parts = packed_hidden(model, batch)[is_learned], model.output_weight, batch.targets[is_learned]
    return linear_cross_entropy(*parts, z_loss=z_loss, reduction="sum")


def count_targets(batch: Batch, ranks: ProcessGroup = ONE_PROCESS) -> int | Tensor:
    """The number of targets that `summed_loss` sums over, or of pairs, on all ranks."""
    if batch.positions is None:
        return batch.targets.numel() * ranks.size
    count: int | Tensor = (batch.targets >= 0).sum()
    if batch.pairs is not None:
        count = len(find_pairs(batch)[0])
    return count if ranks.size == 1 else sum(ranks.gather(int(count)))
