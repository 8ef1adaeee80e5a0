"""How a run computes: device, precision, compilation, and torch's switches for the time of the run.

Every "auto" is resolved here, before anything else looks at the settings, so that the run folder
holds what was decided; the log gets one line that says which kernels run.
"""

import contextlib
import functools
import logging
import os
import platform
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from groundup.config import flatten
from groundup.data.batches.order import batch_samples
from groundup.distributed.process_group import ALONE, World
from groundup.errors import ConfigError
from groundup.model import ModelConfig, TransformerLM
from groundup.nn import float8
from groundup.nn.kernels import HAS_TRITON
from groundup.planner import (
    Execution,
    StepMemory,
    choose_micro_batch,
    memory_options,
    step_memory,
)
from groundup.planner.distributed import Strategy
from groundup.planner.distributed import choose_strategy as plan_strategy
from groundup.planner.hardware import Precision, peak_flops_per_second
from groundup.planner.memory import check_fits
from groundup.runs.config import RunConfig
from groundup.runtime import (
    count_of,
    is_onednn_slow,
    keep_freed_memory,
    matmul_seconds,
    memory_bytes,
    why_no_bfloat16,
)

# A peak is measured by matmuls of this size.
_MATMUL_SIZE = 512
_CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"

_log = logging.getLogger(__name__)


def resolve(config: RunConfig, world: World = ALONE) -> RunConfig:
    """The same settings with every "auto" replaced by what this machine makes of it.

    An error where the run cannot be trained here; who only computes wants `resolve_device`.

    config: as the user gave them.
    world: the ranks that share the batch.
    """
    config = resolve_device(config)
    if config.model.dropout and (world.size > 1 or config.distributed.recompute):
        raise ConfigError(
            f"model.dropout {config.model.dropout:g} needs one process and no "
            f"distributed.recompute, for what is dropped is drawn by each process in its own order"
        )
    num_rows = len(batch_samples(0, config.batch_size, world.rank, world.size))
    size = config.micro_batch
    if size is not None:
        _check_divisible(config, world, num_rows, size)
    strategy = choose_strategy(config, world)
    if config.precision == "float8":
        _check_float8(config.model, strategy)
    if config.micro_batch_size == "auto":
        memory = planned_memory(config).shard(num_shards(strategy, world))
        rank_bytes = _rank_memory_bytes(config, world)
        size = check_fits(memory, choose_micro_batch(memory, num_rows, rank_bytes), rank_bytes)
        size = None if size == config.batch_size else size
    if size is None and strategy == "ddp" and reduces_exactly(config):
        _check_divisible(config, world, num_rows, config.batch_size)
    return config.model_copy(update={"micro_batch_size": size})


def with_micro_batch_of(run: RunConfig, config: RunConfig, world: World) -> RunConfig:
    """The settings of a resume with the micro-batches that its run had, unless it is given others;
    where so many ranks cannot have them, to be chosen again.

    run: as it was trained before.
    config: as the user gave them.
    world: the ranks that share the batch.
    """
    is_given = config.micro_batch_size not in ("auto", run.micro_batch_size)
    if is_given or config.batch_size != run.batch_size:
        return config
    num_rows, size = config.batch_size // world.size, run.micro_batch_size
    is_divided = config.distributed.strategy in ("fsdp", "hsdp")
    takes_all_rows = run.micro_batch is None and (
        is_divided or not reduces_exactly(resolve_device(config))
    )
    if num_rows % run.sequences_in_memory and not takes_all_rows:
        size = "auto"
    return config.model_copy(update={"micro_batch_size": size})


def _check_divisible(config: RunConfig, world: World, num_rows: int, size: int) -> None:
    """Each rank takes whole micro-batches."""
    if num_rows % size:
        raise ConfigError(
            f"batch_size {config.batch_size} in micro-batches of {size} cannot be divided among "
            f"{count_of(world.size, 'rank')}, which take {num_rows} sequences each: use "
            f"--micro-batch-size {num_rows}, or a divisor of it"
        )


def _check_float8(model: ModelConfig, strategy: Strategy) -> None:
    reason = None
    if model.d_model % float8.MULTIPLE or model.feed_forward_dim % float8.MULTIPLE:
        reason = f"wants model.d_model and model.d_ff to be multiples of {float8.MULTIPLE}"
    elif strategy != "ddp":
        reason = f"wants all weights on each rank (--distributed.strategy ddp), not {strategy}"
    if reason is not None:
        raise ConfigError(f"precision float8 {reason}: use --precision bfloat16")


def reduces_exactly(config: RunConfig) -> bool:
    """Whether gradients are added in one order, whatever the number of ranks."""
    if config.distributed.reduction == "auto":
        return config.deterministic or config.device == "cpu"
    return config.distributed.reduction == "exact"


def num_shards(strategy: Strategy, world: World) -> int:
    """How many ranks of the `world` hold the weights between them with a `strategy`."""
    return {"ddp": 1, "fsdp": world.size, "hsdp": world.local_size}[strategy]


def choose_strategy(config: RunConfig, world: World) -> Strategy:
    """Whether each rank has all weights or some rows of each.

    config: of the run, with its device resolved.
    world: the ranks. Without torchrun there is nothing to share.
    """
    wanted, reduction = config.distributed.strategy, config.distributed.reduction
    if not world.is_open:
        return "ddp"
    if wanted in ("fsdp", "hsdp") and reduction == "exact":
        raise ConfigError(
            f"distributed.strategy {wanted} adds gradients in the order of the backend: use "
            f"--distributed.reduction fast, or --distributed.strategy ddp to add them exactly"
        )
    if wanted != "auto":
        return wanted
    if world.size == 1 or reduction == "exact":
        return "ddp"
    return plan_strategy(
        planned_memory(config),
        len(batch_samples(0, config.batch_size, world.rank, world.size)),
        _rank_memory_bytes(config, world),
        num_gpus=world.size,
        gpus_per_machine=world.local_size,
        micro_batch=config.micro_batch,
    )


def resolve_device(config: RunConfig) -> RunConfig:
    """The same settings with device, precision and compilation resolved."""
    device = _resolve_device(config.device)
    return config.model_copy(
        update={
            "device": device,
            "precision": _resolve_precision(config.precision, device),
            "compile": _resolve_compile(config.compile, device),
        }
    )


def sequences_to_evaluate(config: RunConfig) -> int:
    """As many at once as training has; one where training has no room at all."""
    if config.micro_batch_size != "auto":
        return config.sequences_in_memory
    memory = planned_memory(config)
    return choose_micro_batch(memory, config.batch_size, _memory_bytes(config)) or 1


def planned_memory(config: RunConfig) -> StepMemory:
    """What a step of a resolved run takes, by the planner."""
    execution = Execution.of(config.device, config.precision)
    return step_memory(
        config.model,
        execution,
        config.optimizer.name,
        _memory_bytes(config),
        **memory_options(dict(flatten(config.model_dump()))),
    )


def autocast(config: RunConfig) -> AbstractContextManager[Any]:
    """Within it matmuls are computed in the run's precision; weights stay in float32."""
    if config.precision == "float32":
        return nullcontext()
    return torch.autocast(torch.device(config.device).type, dtype=torch.bfloat16)


@contextlib.contextmanager
def switches(config: RunConfig) -> Iterator[None]:
    """Set torch's process-wide switches for the run, and put them back after it."""
    with contextlib.ExitStack() as stack:
        if config.num_threads is not None:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(config.num_threads)
        if config.device == "cpu":
            keep_freed_memory()
        if config.device == "cpu" and is_onednn_slow():
            onednn = torch.backends.mkldnn
            stack.callback(setattr, onednn, "enabled", onednn.enabled)
            onednn.enabled = False  # type: ignore[assignment]
        is_cuda = config.device.startswith("cuda")
        if is_cuda:
            stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision("high" if config.tf32 else "highest")
        # On the CPU torch adds up the gradients of an embedding in the order in which its threads
        # come by, unless told otherwise; the other order costs nothing.
        if config.deterministic or config.device == "cpu":
            stack.enter_context(_deterministic(is_compiled=config.compile != "off"))
        if config.deterministic and is_cuda:
            # These two have backward passes whose sums have no fixed order.
            stack.enter_context(
                torch.nn.attention.sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])
            )
        yield


def compile_model(model: TransformerLM, config: RunConfig) -> None:
    """Compile in place what the settings say; names and weights stay as they are."""
    if config.compile == "blocks":
        for part in (*model.blocks, model.extra_values, model.final_norm):
            if part is not None:
                part.compile(dynamic=False)
    elif config.compile == "model":
        model.hidden = torch.compile(model.hidden, dynamic=False)  # type: ignore[method-assign]


def device_name(config: RunConfig) -> str:
    """The device as its maker calls it."""
    device = torch.device(config.device)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return _processor_name() if device.type == "cpu" else f"{_processor_name()} ({device.type})"


def matmul_precision(config: RunConfig) -> Precision:
    """What matmuls are computed in; MFU is in parts of its peak. Of float8 steps a good part, and
    all that is evaluated, is bfloat16."""
    if config.evaluation_precision == "bfloat16":
        return "bfloat16"
    return "tf32" if config.tf32 and config.device.startswith("cuda") else "float32"


def describe_kernels(config: RunConfig) -> str:
    """One line for the log: which kernels the run computes with."""
    layers = "fused attention and layers"
    if config.device.startswith("cuda") and HAS_TRITON and config.precision != "float32":
        layers += " in Triton"
    precision = {
        "bfloat16": "bfloat16 (autocast, float32 weights)",
        "tf32": "float32 with TF32 matmuls",
        "float32": "float32",
    }[matmul_precision(config)]
    if config.precision == "float8":
        fits = config.model.vocab_size % float8.MULTIPLE == 0
        exception = "" if fits else " but for the output layer"
        precision = f"float8 in training{exception}, else {precision}"
    is_deterministic = config.deterministic or config.device == "cpu"
    parts = [
        layers,
        f"compile {config.compile}",
        f"precision {precision}",
        "deterministic" if is_deterministic else "not deterministic",
        f"{torch.get_num_threads()} CPU threads",
    ]
    return f"kernels on {device_name(config)}: {', '.join(parts)}"


def find_peak(config: RunConfig) -> float | None:
    """The device's peak in floating-point operations a second, from the data sheet of a GPU and
    measured on a CPU. It is the same all through a process; None where nobody knows."""
    precision = matmul_precision(config)
    if config.device.startswith("cuda"):
        return peak_flops_per_second(device_name(config), precision)
    if config.device == "cpu":
        return torch.get_num_threads() * core_peak(
            "bfloat16" if precision == "bfloat16" else "float32"
        )
    return None


@functools.cache
def core_peak(dtype: str) -> float:
    """The peak of one core, measured once: who asks twice has to get the same answer.

    Eight times in new processes on two busy cores, the best of 0.3 s of matmuls on both was between
    35 and 331 GFLOP/s, twice that of 0.1 s on one between 316 and 332 (2026-11).
    """
    return 2 * _MATMUL_SIZE**3 / matmul_seconds(dtype, _MATMUL_SIZE)


def _resolve_device(device: str) -> str:
    if device == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    if device.startswith("cuda"):
        _check_cuda(device)
    if device == "mps" and not torch.backends.mps.is_available():
        reason = "is built without MPS" if not torch.backends.mps.is_built() else "finds no MPS"
        raise ConfigError(
            f"device is mps, but this torch ({torch.__version__}) {reason}: it takes a Mac with "
            f"Apple silicon; elsewhere use --device auto"
        )
    return device


def _check_cuda(device: str) -> None:
    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        raise ConfigError(
            f"device is {device}, but this torch ({torch.__version__}) is built without CUDA: "
            f"install a CUDA build from https://pytorch.org/get-started, or use --device auto"
        )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        raise ConfigError(
            f"device is {device}, but torch finds no CUDA device: check the driver with "
            f"nvidia-smi, or use --device auto"
        )
    if int(device.partition(":")[2] or 0) >= count:
        raise ConfigError(f"device is {device}, but the last of {count} is cuda:{count - 1}")


def _rank_memory_bytes(config: RunConfig, world: World) -> int:
    """What one rank may have; those of a machine share its host's memory."""
    return _memory_bytes(config) // (world.local_size if config.device == "cpu" else 1)


def _memory_bytes(config: RunConfig) -> int:
    """All that the device has: what others use of it may change until the run is resumed."""
    if config.device.startswith("cuda"):
        return torch.cuda.get_device_properties(torch.device(config.device)).total_memory
    return memory_bytes()


def _resolve_precision(precision: str, device: str) -> str:
    if precision == "bfloat16" and device == "cpu" and (reason := why_no_bfloat16()):
        raise ConfigError(f"precision is bfloat16, but {reason}: use --precision float32")
    if precision == "float8" and (reason := _why_no_float8(device)):
        raise ConfigError(f"precision is float8, but {reason}: use --precision auto")
    if precision != "auto":
        return precision
    if device.startswith("cuda") and torch.cuda.is_bf16_supported(including_emulation=False):
        return "bfloat16"
    return "float32"


def _why_no_float8(device: str) -> str | None:
    if not device.startswith("cuda"):
        return f"device is {device}, and float8 is for CUDA"
    if not HAS_TRITON:
        return "Triton, which its kernels are made with, is not installed"
    reason = float8.why_not(torch.device(device))
    return reason and f"{torch.cuda.get_device_name(device)} has no such matmuls ({reason})"


def _resolve_compile(mode: str, device: str) -> str:
    if mode != "auto":
        return mode
    if not device.startswith("cuda"):
        return "off"
    if not HAS_TRITON:
        _log.warning("compile is off, because torch.compile needs triton, which is not installed")
        return "off"
    return "blocks"


@contextlib.contextmanager
def _deterministic(is_compiled: bool) -> Iterator[None]:
    mode = torch.get_deterministic_debug_mode()
    was_filling = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    workspace = os.environ.get(_CUBLAS_WORKSPACE)
    # cuBLAS reads this when it starts; without it, it refuses to be deterministic.
    os.environ.setdefault(_CUBLAS_WORKSPACE, ":4096:8")
    torch.set_deterministic_debug_mode("error")
    if is_compiled:
        # The same and a switch of the compiler, which this imports: two seconds on a slow core.
        torch.use_deterministic_algorithms(True)
    # Filling finds reads of uninitialized memory, at the price of writing all of it.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if workspace is None:
            os.environ.pop(_CUBLAS_WORKSPACE, None)
        if is_compiled:
            torch.use_deterministic_algorithms(mode > 0)
        torch.set_deterministic_debug_mode(mode)
        torch.utils.deterministic.fill_uninitialized_memory = was_filling  # type: ignore[attr-defined]


def _processor_name() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
