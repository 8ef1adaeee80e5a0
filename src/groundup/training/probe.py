"""Measure a run's steps on this machine: a few steps are timed and discarded.

`groundup plan --probe` shows the result, and `groundup new` chooses a model for the speed.
"""

import statistics
import time
from typing import Any, NamedTuple

import torch

from groundup.data.batches.loader import Batch
from groundup.planner import Accelerator, MeasuredStep, describe_cpu, find_accelerator, step_flops
from groundup.planner.hardware import Precision, rate_in
from groundup.runs.config import RunConfig
from groundup.runtime import num_cores, peak_memory_bytes
from groundup.training.clock import Tick
from groundup.training.machine import Machine, matmul_precision, switches
from groundup.training.resolve import resolve
from groundup.training.state import build_state
from groundup.training.step import Step

_PROBE_STEPS = 3
# A CPU is as fast on small batches.
_CPU_PROBE_TOKENS = 4_096


class Probe(NamedTuple):
    """Measured time and memory of a step."""

    device: Accelerator
    precision: Precision
    step: MeasuredStep
    """Corrects the planner's closed form."""
    seconds_per_step: float
    tokens_per_second: float
    mfu: float

    def to_json(self) -> dict[str, Any]:
        values = self._asdict() | {"device": self.device.name} | self.step._asdict()
        return {name: value for name, value in values.items() if name != "step"}


def probe_this_machine(config: RunConfig) -> Probe:
    """Train a model of these settings for a few steps of one micro-batch of random ids."""
    machine = Machine.detect(config.device)
    if config.model.document_separator == "auto":
        # Random ids have no documents: any id shows what masks cost.
        model = config.model.model_copy(update={"document_separator": 0})
        config = config.model_copy(update={"model": model})
    config = resolve(config, machine).config
    is_cpu, precision = config.device == "cpu", matmul_precision(config)
    most = config.sequences_in_memory
    if is_cpu:
        most = min(most, max(1, _CPU_PROBE_TOKENS // config.model.context_length))
    size = next(count for count in range(most, 0, -1) if config.batch_size % count == 0)
    config = config.model_copy(update={"batch_size": size, "micro_batch_size": size})
    seconds, peak_bytes = time_steps(config, machine)
    speed = step_flops(config.model, size) / seconds
    device = find_accelerator(machine.name) or Accelerator(machine.name, None, None, 0.0, 0)
    if is_cpu:
        device = describe_cpu(config.num_threads or num_cores(), machine.memory_bytes)
    # Unknown device, or a faster one than the data sheet says: use the measured rate.
    peak = max(rate_in(device, precision) or 0.0, speed)
    rates: Any = {f"{precision}_flops_per_second": peak}
    device = device._replace(memory_bytes=machine.memory_bytes, **rates)
    speeds = seconds, config.tokens_per_step / seconds, speed / peak
    return Probe(device, precision, MeasuredStep(size, peak_bytes), *speeds)


def time_steps(config: RunConfig, machine: Machine) -> tuple[float, int]:
    """Median seconds of a step on random ids after the warm-up, and peak memory: of the device, or
    the growth of the process."""
    is_cuda = config.device.startswith("cuda")
    before, num_warm_up = peak_memory_bytes(), 5 if is_cuda else 1
    shape, seconds = (config.batch_size, config.model.context_length + 1), []
    with switches(config):
        state = build_state(resolve(config, machine))
        step = Step(config, state)
        for number in range(num_warm_up + _PROBE_STEPS):
            ids = torch.randint(config.model.vocab_size, shape).to(config.device)
            batch = Batch(number, ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), shape[0])
            began = time.perf_counter()
            step(batch, Tick(number + 1, number, 1, 100, False, number - 1)).read()
            seconds.append(time.perf_counter() - began)
    peak = peak_memory_bytes() - before
    peak = torch.cuda.max_memory_allocated(config.device) if is_cuda else peak
    return statistics.median(seconds[num_warm_up:]), max(0, peak)
