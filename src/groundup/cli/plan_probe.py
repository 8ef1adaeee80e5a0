"""Three real steps on this machine: what share of its peak they reach, and what memory they take.

The step is the one that `groundup train` takes, on random ids; nothing is written.
"""

import statistics
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from groundup.model.config import ModelConfig
from groundup.planner import (
    Accelerator,
    Execution,
    describe_cpu,
    find_accelerator,
    step_flops,
    training_memory,
)
from groundup.planner.activations import DeviceKind
from groundup.planner.hardware import rate_in
from groundup.planner.memory import pick_micro_batch
from groundup.runtime import num_cores, peak_memory_bytes
from groundup.training.config import RunConfig

if TYPE_CHECKING:
    from groundup.data.loader import Batch

_TIMED_STEPS = 3
# Everything is allocated after one step, and on CUDA recorded after a few more.
_WARM_UP_STEPS = {"cpu": 1, "mps": 1, "cuda": 5}
# A processor is as fast on small batches, and nobody wants to wait for large ones.
_CPU_TOKENS = 4_096


@dataclass(frozen=True)
class Probe:
    """What the steps took, beside what was predicted."""

    device: Accelerator
    precision: Literal["float32", "bfloat16"]
    micro_batch: int
    seconds_per_step: float
    tokens_per_second: float
    mfu: float
    peak_bytes: int
    predicted_bytes: int

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "device": self.device.name}


def probe_this_machine(config: RunConfig, host_memory_bytes: int) -> Probe:
    """Train a model of these settings for a few steps of one micro-batch."""
    from groundup.training.execution import settle

    config = settle(config)
    execution = _execution(config)
    kind, precision = execution
    device = _describe_device(config, host_memory_bytes)
    memory = training_memory(config.model, execution, config.optimizer.name, device.memory_bytes)
    micro_batch = config.micro_batch
    if micro_batch is None:
        most = pick_micro_batch(memory, config.batch_size, device.memory_bytes)
        if kind == "cpu":
            most = min(most, max(1, _CPU_TOKENS // config.model.context_length))
        micro_batch = next(n for n in range(most, 0, -1) if config.batch_size % n == 0)
    config = config.model_copy(update={"batch_size": micro_batch, "micro_batch_size": micro_batch})
    seconds, peak_bytes = time_steps(config, _WARM_UP_STEPS[kind])
    rate = step_flops(config.model, micro_batch) / seconds
    peak_rate = rate_in(device, precision)
    if not peak_rate or rate > peak_rate:
        # Of a stranger, or a better one than thought, the best that is known is what it just did.
        peak_rate = rate
        device = device._replace(
            float32_flops_per_second=rate,
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


def _execution(config: RunConfig) -> Execution:
    kinds: dict[str, DeviceKind] = {"cuda": "cuda", "mps": "mps"}
    kind = kinds.get(config.device.partition(":")[0], "cpu")
    return Execution(kind, "bfloat16" if config.precision == "bfloat16" else "float32")


def _describe_device(config: RunConfig, host_memory_bytes: int) -> Accelerator:
    from groundup.training.execution import device_name

    name = device_name(config)
    if config.device.startswith("cuda"):
        import torch

        _, total = torch.cuda.mem_get_info(config.device)
        row = find_accelerator(name) or Accelerator(name, None, None, 0.0, total)
        return row._replace(memory_bytes=total)
    if config.device == "cpu":
        return describe_cpu(config.num_threads or num_cores(), host_memory_bytes)
    row = find_accelerator(name) or Accelerator(name, None, None, 0.0, host_memory_bytes)
    return row._replace(memory_bytes=host_memory_bytes)


def time_steps(config: RunConfig, num_warm_up: int) -> tuple[float, int]:
    """Seconds of a step, the median, and the peak of the memory."""
    import torch

    from groundup.training.building import build_state
    from groundup.training.execution import switches
    from groundup.training.graph import choose_step

    is_cuda = config.device.startswith("cuda")
    _load_libraries(config)
    before = peak_memory_bytes()
    seconds = []
    with switches(config):
        state = build_state(config)
        step = choose_step(config, state.model, state.optimizer)
        for number in range(num_warm_up + _TIMED_STEPS):
            batch = random_batch(config, number)
            started = time.perf_counter()
            step(batch).read()
            seconds.append(time.perf_counter() - started)
        peak = torch.cuda.max_memory_allocated(config.device) if is_cuda else peak_memory_bytes()
    return statistics.median(seconds[num_warm_up:]), peak if is_cuda else peak - before


def _load_libraries(config: RunConfig) -> None:
    """Take a step of next to nothing: what is loaded on the way is no part of a step's memory."""
    from groundup.training.building import build_state
    from groundup.training.graph import choose_step

    sizes = {"context_length": 16, "d_model": 16, "num_layers": 1, "num_heads": 1, "vocab_size": 16}
    small = config.model_copy(
        update={
            "compile": "off",
            "batch_size": 1,
            "micro_batch_size": 1,
            "model": ModelConfig(**sizes),
        }
    )
    state = build_state(small)
    choose_step(small, state.model, state.optimizer)(random_batch(small, 0)).read()


def random_batch(config: RunConfig, number: int) -> "Batch":
    import torch

    from groundup.data.loader import Batch

    generator = torch.Generator().manual_seed(number)
    shape = (config.batch_size, config.model.context_length + 1)
    ids = torch.randint(config.model.vocab_size, shape, generator=generator).to(config.device)
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    return Batch(number, inputs, targets, config.micro_batch)
