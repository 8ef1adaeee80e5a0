"""Steps on CUDA as one recorded graph, replayed: the host queues a step in one call.

The first steps run as they are, so that everything is compiled and warm; the next one is recorded,
which computes nothing, and from then on each step is a copy of its batch and a replay.
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from groundup.data.batches.loader import Batch
from groundup.model import TransformerLM
from groundup.optim.base import Optimizer
from groundup.runs.config import RunConfig
from groundup.training.execution import autocast
from groundup.training.step import QueuedStep, compute_step, queue_figures, train_step

_PLAIN_STEPS = 3


def choose_step(
    config: RunConfig, model: TransformerLM, optimizer: Optimizer
) -> Callable[[Batch], QueuedStep]:
    """The step of a run: recorded where the settings and the device allow it, else plain."""
    settings: dict[str, Any] = {
        "clip_norm": config.clip_norm,
        "z_loss": config.z_loss,
        "autocast": functools.partial(autocast, config),
    }
    # SGD's rate depends on a count that the host keeps.
    can_record = config.device.startswith("cuda") and config.optimizer.name != "sgd"
    if config.cuda_graph and can_record:
        return GraphedStep(model, optimizer, **settings)
    return functools.partial(train_step, model, optimizer, **settings)


class GraphedStep:
    """`train_step` for batches of one shape, with the same results.

    Learning rates are read from the optimizer's groups before each step, as numbers.
    """

    def __init__(
        self,
        model: TransformerLM,
        optimizer: Optimizer,
        *,
        clip_norm: float | None,
        z_loss: float,
        autocast: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._settings: dict[str, Any] = {
            "clip_norm": clip_norm,
            "z_loss": z_loss,
            "autocast": autocast,
        }
        self._num_plain = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._batch: Batch
        self._figures: Tensor
        self._rates: list[Tensor] = []

    def __call__(self, batch: Batch) -> QueuedStep:
        if self._num_plain < _PLAIN_STEPS:
            self._num_plain += 1
            return train_step(self._model, self._optimizer, batch, **self._settings)
        if self._graph is None:
            self._graph = self._record(batch)
        self._batch.inputs.copy_(batch.inputs)
        self._batch.targets.copy_(batch.targets)
        for rate, group in zip(self._rates, self._optimizer.param_groups, strict=True):
            rate.fill_(group["lr"])
        self._graph.replay()
        return queue_figures(batch.step + 1, self._figures)

    def _record(self, batch: Batch) -> torch.cuda.CUDAGraph:
        device = batch.inputs.device
        self._batch = Batch(
            batch.step, batch.inputs.clone(), batch.targets.clone(), batch.micro_batch_size
        )
        groups = self._optimizer.param_groups
        numbers = [group["lr"] for group in groups]
        self._rates = [torch.tensor(float(rate), device=device) for rate in numbers]
        for group, rate in zip(groups, self._rates, strict=True):
            group["lr"] = rate
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(device)
        # The thread that reads batches ahead goes on using the device meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._figures = compute_step(
                self._model, self._optimizer, self._batch, **self._settings
            )
        for group, number in zip(groups, numbers, strict=True):
            group["lr"] = number
        return graph
