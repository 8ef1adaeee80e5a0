"""How a run computes: device, precision, compilation, and torch's switches for the time of the run.

Every "auto" is settled here, before anything else looks at the settings, so that the run folder
holds what was decided; the log gets one line that says which kernels run.
"""

import contextlib
import logging
import os
import platform
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from groundup.errors import ConfigError
from groundup.model import TransformerLM
from groundup.nn.kernels import HAS_TRITON
from groundup.planner import Execution, TrainingMemory, pick_micro_batch, training_memory
from groundup.runs.config import RunConfig
from groundup.runtime import keep_freed_memory, memory_bytes, why_no_bfloat16

_CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"

_log = logging.getLogger(__name__)


def settle(config: RunConfig) -> RunConfig:
    """The same settings with every "auto" replaced by what this machine makes of it.

    An error where the run cannot be trained here; who only computes wants `settle_device`.
    """
    settled = settle_device(config)
    return settled.model_copy(update={"micro_batch_size": _settle_micro_batch(settled)})


def settle_device(config: RunConfig) -> RunConfig:
    """The same settings with device, precision and compilation settled."""
    device = _settle_device(config.device)
    return config.model_copy(
        update={
            "device": device,
            "precision": _settle_precision(config.precision, device),
            "compile": _settle_compile(config.compile, device),
        }
    )


def sequences_to_evaluate(config: RunConfig) -> int:
    """As many at once as training has; one where training has no room at all."""
    if config.micro_batch_size != "auto":
        return config.sequences_in_memory
    memory = planned_memory(config)
    return memory.largest_divisor(config.batch_size, _memory_bytes(config)) or 1


def planned_memory(config: RunConfig) -> TrainingMemory:
    """What a step of a settled run takes, by the planner."""
    execution = Execution.of(config.device, config.precision)
    return training_memory(config.model, execution, config.optimizer.name, _memory_bytes(config))


def autocast(config: RunConfig) -> AbstractContextManager[Any]:
    """Within it products are computed in the run's precision; weights stay in float32."""
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
        is_cuda = config.device.startswith("cuda")
        if is_cuda:
            stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision("high" if config.tf32 else "highest")
        # On the CPU torch adds up the gradients of an embedding in the order in which its threads
        # come by, unless told otherwise; the other order costs nothing.
        if config.deterministic or config.device == "cpu":
            stack.enter_context(_deterministic())
        if config.deterministic and is_cuda:
            # These two have backward passes whose sums have no fixed order.
            stack.enter_context(
                torch.nn.attention.sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])
            )
        yield


def compile_model(model: TransformerLM, config: RunConfig) -> None:
    """Compile in place what the settings say; names and weights stay as they are."""
    if config.compile == "blocks":
        for block in model.blocks:
            block.compile(dynamic=False)
        model.final_norm.compile(dynamic=False)
    elif config.compile == "model":
        model.hidden = torch.compile(model.hidden, dynamic=False)  # type: ignore[method-assign]


def device_name(config: RunConfig) -> str:
    """The device as its maker calls it."""
    device = torch.device(config.device)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return _processor_name() if device.type == "cpu" else f"{_processor_name()} ({device.type})"


def describe_kernels(config: RunConfig) -> str:
    """One line for the log: which kernels the run computes with."""
    is_cuda = config.device.startswith("cuda")
    precision = "float32"
    if config.precision == "bfloat16":
        precision = "bfloat16 (autocast, float32 weights)"
    elif is_cuda:
        precision += " with TF32 products" if config.tf32 else ""
    is_deterministic = config.deterministic or config.device == "cpu"
    parts = [
        _describe_layers(config),
        f"compile {config.compile}",
        f"precision {precision}",
        "deterministic" if is_deterministic else "not deterministic",
        f"{torch.get_num_threads()} CPU threads",
    ]
    return f"kernels on {device_name(config)}: {', '.join(parts)}"


def _describe_layers(config: RunConfig) -> str:
    if config.model.kernels == "reference":
        return "reference formulas"
    is_cuda = config.device.startswith("cuda")
    if is_cuda and HAS_TRITON and config.precision == "bfloat16":
        return "fused attention and layers in Triton"
    return "fused attention and layers"


def _settle_device(device: str) -> str:
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


def _settle_micro_batch(config: RunConfig) -> int | None:
    if config.micro_batch_size != "auto":
        return config.micro_batch
    size = pick_micro_batch(planned_memory(config), config.batch_size, _memory_bytes(config))
    return None if size == config.batch_size else size


def _memory_bytes(config: RunConfig) -> int:
    """All that the device has: what others use of it may change until the run is resumed."""
    if config.device.startswith("cuda"):
        return torch.cuda.get_device_properties(torch.device(config.device)).total_memory
    return memory_bytes()


def _settle_precision(precision: str, device: str) -> str:
    if precision == "bfloat16" and device == "cpu" and (reason := why_no_bfloat16()):
        raise ConfigError(f"precision is bfloat16, but {reason}: use --precision float32")
    if precision != "auto":
        return precision
    if device.startswith("cuda") and torch.cuda.is_bf16_supported(including_emulation=False):
        return "bfloat16"
    return "float32"


def _settle_compile(mode: str, device: str) -> str:
    if mode != "auto":
        return mode
    if not device.startswith("cuda"):
        return "off"
    if not HAS_TRITON:
        _log.warning("compile is off, because torch.compile needs triton, which is not installed")
        return "off"
    return "blocks"


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    was_enabled = torch.are_deterministic_algorithms_enabled()
    was_warning = torch.is_deterministic_algorithms_warn_only_enabled()
    was_filling = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    workspace = os.environ.get(_CUBLAS_WORKSPACE)
    # cuBLAS reads this when it starts; without it, it refuses to be deterministic.
    os.environ.setdefault(_CUBLAS_WORKSPACE, ":4096:8")
    torch.use_deterministic_algorithms(True)
    # Filling finds reads of uninitialized memory, at the price of writing all of it.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if workspace is None:
            os.environ.pop(_CUBLAS_WORKSPACE, None)
        torch.use_deterministic_algorithms(was_enabled, warn_only=was_warning)
        torch.utils.deterministic.fill_uninitialized_memory = was_filling  # type: ignore[attr-defined]


def _processor_name() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
