"""Real steps that count for nothing: taken to be timed or weighed, and thrown away."""

import time
from collections.abc import Iterable

import torch

from groundup.data.batches.loader import Batch
from groundup.optim.build import set_learning_rates
from groundup.runs.config import RunConfig
from groundup.training.building import build_state
from groundup.training.graph import choose_step
from groundup.training.step import QueuedStep


class Rehearsal:
    """A model and an optimizer made as a run makes them; `switches` must be on, as for a run."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.state = build_state(config)
        self._step = choose_step(config, self.state.model, self.state.optimizer)

    def take(self, batches: Iterable[Batch]) -> float:
        """Seconds of a step for each batch; as in a run, figures are read one step later."""
        began = time.perf_counter()
        queued: QueuedStep | None = None
        for batch in batches:
            launched = self._launch(batch)
            if queued is not None:
                queued.read()
            queued = launched
        if queued is not None:
            queued.read()
        return time.perf_counter() - began

    def _launch(self, batch: Batch) -> QueuedStep:
        config = self.config
        set_learning_rates(
            self.state.optimizer, config.optimizer, config.schedule, batch.step, config.num_steps
        )
        return self._step(batch)


def num_warm_up_steps(config: RunConfig) -> int:
    """Everything is allocated after one step, and on CUDA recorded after a few more."""
    return 5 if config.device.startswith("cuda") else 1


def random_batch(config: RunConfig, number: int) -> Batch:
    """A batch of ids that need no data; the same for the same number."""
    generator = torch.Generator().manual_seed(number)
    shape = (config.batch_size, config.model.context_length + 1)
    ids = torch.randint(config.model.vocab_size, shape, generator=generator).to(config.device)
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    return Batch(number, inputs, targets, config.micro_batch)
