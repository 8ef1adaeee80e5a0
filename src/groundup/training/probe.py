"""What a step of a run takes on this machine: a few are taken, timed and thrown away.

`groundup plan --probe` shows it, and `groundup new` chooses a model for the speed it finds.
"""

import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch

from groundup.data.batches.loader import Batch
from groundup.model.config import ModelConfig
from groundup.planner import (
    Accelerator,
    MeasuredStep,
    describe_cpu,
    find_accelerator,
    step_flops,
)
from groundup.planner.hardware import Precision, rate_in
from groundup.runs.config import RunConfig
from groundup.runtime import num_cores, peak_memory_bytes
from groundup.training.build import build_state
from groundup.training.clock import Tick
from groundup.training.execution import switches
from groundup.training.machine import Machine, device_name, matmul_precision
from groundup.training.resolve import planned_memory, resolve
from groundup.training.step import Step

_PROBE_STEPS = 3
# A processor is as fast on small batches, and nobody wants to wait for large ones.
_CPU_PROBE_TOKENS = 4_096


@dataclass(frozen=True)
class Probe:
    """What a few steps took on this machine, beside what was predicted."""

    device: Accelerator
    precision: Precision
    micro_batch: int
    seconds_per_step: float
    tokens_per_second: float
    mfu: float
    peak_bytes: int
    predicted_bytes: int

    @property
    def step(self) -> MeasuredStep:
        """What the planner corrects its closed form by."""
        return MeasuredStep(self.micro_batch, self.peak_bytes)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "device": self.device.name}


def probe_this_machine(config: RunConfig, host_memory_bytes: int) -> Probe:
    """Train a model of these settings for a few steps of one micro-batch of random ids."""
    machine = Machine.detect(config.device)
    config = resolve(config, machine).config
    precision = matmul_precision(config)
    device = _describe_device(config, machine, host_memory_bytes)
    most = config.sequences_in_memory
    if config.device == "cpu":
        most = min(most, max(1, _CPU_PROBE_TOKENS // config.model.context_length))
    size = next(count for count in range(most, 0, -1) if config.batch_size % count == 0)
    config = config.model_copy(update={"batch_size": size, "micro_batch_size": size})
    seconds, peak_bytes = time_steps(config, machine)
    speed = step_flops(config.model, size) / seconds
    peak = rate_in(device, precision)
    if not peak or speed > peak:
        # Unknown device, or a faster one than the data sheet says: use the measured rate.
        peak = speed
        device = device._replace(
            float32_flops_per_second=speed,
            tf32_flops_per_second=speed if precision == "tf32" else None,
            bfloat16_flops_per_second=speed if precision == "bfloat16" else None,
        )
    return Probe(
        device=device,
        precision=precision,
        micro_batch=size,
        seconds_per_step=seconds,
        tokens_per_second=config.tokens_per_step / seconds,
        mfu=speed / peak,
        peak_bytes=peak_bytes,
        predicted_bytes=planned_memory(config, device.memory_bytes).bytes_at(size),
    )


def time_steps(config: RunConfig, machine: Machine) -> tuple[float, int]:
    """Seconds of a step, the median of a few after the warm-up, and the peak of the memory."""
    # What is loaded on the way to a first step, here of next to nothing, is not part of its memory.
    sizes = {"context_length": 16, "d_model": 16, "num_layers": 1, "num_heads": 1, "vocab_size": 16}
    one = {"compile": "off", "batch_size": 1, "micro_batch_size": 1, "model": ModelConfig(**sizes)}
    _take_steps(config.model_copy(update=one), machine, 1)
    before = peak_memory_bytes()
    num_warm_up = 5 if config.device.startswith("cuda") else 1
    with switches(config):
        seconds = _take_steps(config, machine, num_warm_up + _PROBE_STEPS)
        if config.device.startswith("cuda"):
            peak = torch.cuda.max_memory_allocated(config.device)
        else:
            # The system counts in batches: what grew by nothing may seem to have shrunk.
            peak = max(0, peak_memory_bytes() - before)
    return statistics.median(seconds[num_warm_up:]), peak


def _take_steps(config: RunConfig, machine: Machine, count: int) -> list[float]:
    """The seconds of each of so many steps on random ids, as a run takes them."""
    state = build_state(resolve(config, machine))
    step = Step(config, state.model, state.optimizer, state.reduction)
    shape = (config.batch_size, config.model.context_length + 1)
    seconds = []
    for number in range(count):
        generator = torch.Generator().manual_seed(number)
        ids = torch.randint(config.model.vocab_size, shape, generator=generator).to(config.device)
        inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
        began = time.perf_counter()
        tick = Tick(number + 1, number, 1, count, number == count - 1, number - 1)
        step(Batch(number, inputs, targets, config.micro_batch), tick).read()
        seconds.append(time.perf_counter() - began)
    return seconds


def _describe_device(config: RunConfig, machine: Machine, host_memory_bytes: int) -> Accelerator:
    if config.device == "cpu":
        return describe_cpu(config.num_threads or num_cores(), host_memory_bytes)
    num_bytes = machine.memory_bytes if config.device.startswith("cuda") else host_memory_bytes
    name = device_name(config)
    row = find_accelerator(name) or Accelerator(name, None, None, 0.0, num_bytes)
    return row._replace(memory_bytes=num_bytes)
