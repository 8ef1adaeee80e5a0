"""Three real steps on this machine: what share of its peak they reach, and what memory they take.

The step is the one that `groundup train` takes, on random ids; nothing is written.
"""

import statistics
from dataclasses import asdict, dataclass
from typing import Any

import torch

from groundup.model.config import ModelConfig
from groundup.planner import (
    Accelerator,
    Execution,
    describe_cpu,
    find_accelerator,
    step_flops,
    training_memory,
)
from groundup.planner.hardware import Precision, rate_in
from groundup.planner.memory import pick_micro_batch
from groundup.runs.config import RunConfig
from groundup.runtime import num_cores, peak_memory_bytes
from groundup.training.execution import device_name, settle, switches
from groundup.training.rehearsal import Rehearsal, num_warm_up_steps, random_batch

_TIMED_STEPS = 3
# A process does not grow by a step that fits into what it holds already.
_LEAST_SEEN_BYTES = 100_000_000
# A processor is as fast on small batches, and nobody wants to wait for large ones.
_CPU_TOKENS = 4_096


@dataclass(frozen=True)
class Probe:
    """What the steps took, beside what was predicted."""

    device: Accelerator
    precision: Precision
    micro_batch: int
    seconds_per_step: float
    tokens_per_second: float
    mfu: float
    peak_bytes: int
    predicted_bytes: int

    @property
    def memory_factor(self) -> float:
        """By how much the plan of memory has to be corrected; not by what is too little to see."""
        is_seen = self.predicted_bytes >= _LEAST_SEEN_BYTES and self.peak_bytes > 0
        return self.peak_bytes / self.predicted_bytes if is_seen else 1.0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "device": self.device.name}


def probe_this_machine(config: RunConfig, host_memory_bytes: int) -> Probe:
    """Train a model of these settings for a few steps of one micro-batch."""
    config = settle(config)
    execution = Execution.of(config.device, config.precision)
    kind = execution.device
    device = _describe_device(config, host_memory_bytes)
    precision: Precision = execution.precision
    if precision == "float32" and config.tf32 and device.tf32_flops_per_second is not None:
        precision = "tf32"
    memory = training_memory(config.model, execution, config.optimizer.name, device.memory_bytes)
    micro_batch = config.micro_batch
    if micro_batch is None:
        most = pick_micro_batch(memory, config.batch_size, device.memory_bytes)
        if kind == "cpu":
            most = min(most, max(1, _CPU_TOKENS // config.model.context_length))
        micro_batch = next(n for n in range(most, 0, -1) if config.batch_size % n == 0)
    config = config.model_copy(update={"batch_size": micro_batch, "micro_batch_size": micro_batch})
    seconds, peak_bytes = time_steps(config, num_warm_up_steps(config))
    rate = step_flops(config.model, micro_batch) / seconds
    peak_rate = rate_in(device, precision)
    if not peak_rate or rate > peak_rate:
        # Of a stranger, or a better one than thought, the best that is known is what it just did.
        peak_rate = rate
        device = device._replace(
            float32_flops_per_second=rate,
            tf32_flops_per_second=rate if precision == "tf32" else None,
            bfloat16_flops_per_second=rate if precision == "bfloat16" else None,
        )
    return Probe(
        device=device,
        precision=precision,
        micro_batch=micro_batch,
        seconds_per_step=seconds,
        tokens_per_second=config.tokens_per_step / seconds,
        mfu=rate / peak_rate,
        peak_bytes=peak_bytes,
        predicted_bytes=memory.bytes_at(micro_batch),
    )


def _describe_device(config: RunConfig, host_memory_bytes: int) -> Accelerator:
    name = device_name(config)
    if config.device.startswith("cuda"):
        _, total = torch.cuda.mem_get_info(config.device)
        row = find_accelerator(name) or Accelerator(name, None, None, 0.0, total)
        return row._replace(memory_bytes=total)
    if config.device == "cpu":
        return describe_cpu(config.num_threads or num_cores(), host_memory_bytes)
    row = find_accelerator(name) or Accelerator(name, None, None, 0.0, host_memory_bytes)
    return row._replace(memory_bytes=host_memory_bytes)


def time_steps(config: RunConfig, num_warm_up: int) -> tuple[float, int]:
    """Seconds of a step, the median, and the peak of the memory."""
    is_cuda = config.device.startswith("cuda")
    _load_libraries(config)
    before = peak_memory_bytes()
    seconds = []
    with switches(config):
        rehearsal = Rehearsal(config)
        for number in range(num_warm_up + _TIMED_STEPS):
            seconds.append(rehearsal.take([random_batch(config, number)]))
        peak = torch.cuda.max_memory_allocated(config.device) if is_cuda else peak_memory_bytes()
    return statistics.median(seconds[num_warm_up:]), peak if is_cuda else peak - before


def _load_libraries(config: RunConfig) -> None:
    """Take a step of next to nothing: what is loaded on the way is no part of a step's memory."""
    sizes = {"context_length": 16, "d_model": 16, "num_layers": 1, "num_heads": 1, "vocab_size": 16}
    small = config.model_copy(
        update={
            "compile": "off",
            "batch_size": 1,
            "micro_batch_size": 1,
            "model": ModelConfig(**sizes),
        }
    )
    Rehearsal(small).take([random_batch(small, 0)])
