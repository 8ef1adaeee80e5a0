"""What this machine has to train on, and how a run computes there: precision, compiling, switches.

The facts are asked once, so that `resolve` depends on nothing else: a test may make a `Machine` of
an H200 and resolve a run for it anywhere.
"""

import contextlib
import functools
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from groundup.errors import ConfigError
from groundup.model import TransformerLM
from groundup.nn import float8
from groundup.nn.kernels import HAS_TRITON
from groundup.planner.hardware import Precision, peak_flops_per_second
from groundup.runs.config import RunConfig
from groundup.runtime import is_onednn_slow, keep_freed_memory, memory_bytes

# A peak is measured by matmuls of this size.
_MATMUL_SIZE = 512


@dataclass(frozen=True)
class Machine:
    """The device that a run trains on."""

    device: str
    """cpu, mps, cuda or cuda:N."""
    name: str
    memory_bytes: int
    """All that it has: what others use of it may change until the run is resumed."""
    has_bfloat16: bool = False
    has_triton: bool = False
    why_no_float8: str | None = "float8 is for CUDA"

    @classmethod
    def detect(cls, device: str = "auto") -> "Machine":
        """The device of that name, or the fastest there is; an error where it is missing."""
        has_mps = torch.backends.mps.is_available()
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if device == "auto":
            device = "cuda" if count else "mps" if has_mps else "cpu"
        is_cuda = device.startswith("cuda")
        if (device == "mps" and not has_mps) or (
            is_cuda and int(device.partition(":")[2] or 0) >= count
        ):
            raise ConfigError(
                f"device is {device}, but torch {torch.__version__} finds {count} CUDA devices and "
                f"{'an' if has_mps else 'no'} MPS device: use --device auto"
            )
        if not is_cuda:
            return cls(device, device_name(device), memory_bytes())
        place = torch.device(device)
        memory = torch.cuda.get_device_properties(place).total_memory
        has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
        reason = float8.why_not(place) if HAS_TRITON else "Triton is not installed"
        return cls(device, device_name(device), memory, has_bfloat16, HAS_TRITON, reason)


def device_name(name: str) -> str:
    """A device as its maker calls it."""
    device = torch.device(name)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        found = (line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
        processor = next(found, processor)
    return processor if device.type == "cpu" else f"{processor} ({device.type})"


def matmul_precision(config: RunConfig) -> Precision:
    """What matmuls are computed in; MFU is in parts of its peak. Of float8 steps a good part, and
    all that is evaluated, is bfloat16."""
    if config.evaluation_precision == "bfloat16":
        return "bfloat16"
    return "tf32" if config.tf32 and config.device.startswith("cuda") else "float32"


def find_peak(config: RunConfig) -> float | None:
    """The device's peak in floating-point operations a second, from the data sheet of a GPU and
    measured on a CPU; None where nobody knows."""
    precision = matmul_precision(config)
    if config.device.startswith("cuda"):
        return peak_flops_per_second(device_name(config.device), precision)
    if config.device == "cpu":
        return torch.get_num_threads() * core_peak(precision)
    return None


@functools.cache
def core_peak(dtype: str) -> float:
    """The peak of one core, measured once: who asks twice has to get the same answer.

    By the shortest of many matmuls, of which the first few dozen may be slow. On one core, because
    with other processes beside it a measurement on all cores is ten times off.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    matrix = torch.ones(_MATMUL_SIZE, _MATMUL_SIZE, dtype=getattr(torch, dtype), device="cpu")
    torch.mm(matrix, matrix)
    ticks = [time.perf_counter()]
    while len(ticks) < 100 and ticks[-1] - ticks[0] < 0.1:
        torch.mm(matrix, matrix)
        ticks.append(time.perf_counter())
    torch.set_num_threads(num_threads)
    seconds = min(end - begin for begin, end in pairwise(ticks))
    return 2 * _MATMUL_SIZE**3 / max(seconds, 1e-9)


_CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_NO_LIMIT = 1 << 20


def autocast(config: RunConfig) -> AbstractContextManager[Any]:
    """Within it matmuls are computed in the run's precision; weights stay in float32."""
    if config.precision == "float32":
        return nullcontext()
    return torch.autocast(torch.device(config.device).type, dtype=torch.bfloat16)


@contextlib.contextmanager
def switches(config: RunConfig) -> Iterator[None]:
    """Set torch's process-wide switches for the run, and put them back after it."""
    with contextlib.ExitStack() as stack:
        is_cpu, is_cuda = config.device == "cpu", config.device.startswith("cuda")
        if config.num_threads is not None:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(config.num_threads)
        if is_cpu:
            keep_freed_memory()
        if is_cpu and is_onednn_slow():
            onednn = torch.backends.mkldnn
            stack.callback(setattr, onednn, "enabled", onednn.enabled)
            onednn.enabled = False  # type: ignore[assignment]
        if is_cuda:
            stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision("high" if config.tf32 else "highest")
        if config.compile != "off":
            # A process may train many shapes; beyond its limit torch would go on without compiling,
            # slower and with other roundings.
            limits = {"recompile_limit": _NO_LIMIT, "accumulated_recompile_limit": _NO_LIMIT}
            stack.enter_context(torch._dynamo.config.patch(limits))
        # On the CPU torch adds up the gradients of an embedding in the order in which its threads
        # come by, unless told otherwise; the other order costs nothing.
        if config.deterministic or is_cpu:
            stack.enter_context(_deterministic(is_compiled=config.compile != "off"))
        if config.deterministic and is_cuda:
            # The sums in the backward passes of the others have no fixed order.
            stack.enter_context(sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]))
        yield


def compile_model(model: TransformerLM, config: RunConfig) -> None:
    """Compile in place what the settings say; names and weights stay as they are."""
    if config.compile == "blocks":
        for part in (*model.blocks, model.value_embeddings, model.final_norm):
            if part is not None:
                part.compile(dynamic=False)
    elif config.compile == "model":
        model.hidden = torch.compile(model.hidden, dynamic=False)  # type: ignore[method-assign]


@contextlib.contextmanager
def _deterministic(is_compiled: bool) -> Iterator[None]:
    mode = torch.get_deterministic_debug_mode()
    filling = torch.utils.deterministic
    was_filling = filling.fill_uninitialized_memory  # type: ignore[attr-defined]
    workspace = os.environ.get(_CUBLAS_WORKSPACE)
    # cuBLAS reads this when it starts; without it, it refuses to be deterministic.
    os.environ.setdefault(_CUBLAS_WORKSPACE, ":4096:8")
    torch.set_deterministic_debug_mode("error")
    if is_compiled:
        # The same and a switch of the compiler, which this imports: two seconds on a slow core.
        torch.use_deterministic_algorithms(True)
    # Filling finds reads of uninitialized memory, at the price of writing all of it.
    filling.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if workspace is None:
            os.environ.pop(_CUBLAS_WORKSPACE, None)
        if is_compiled:
            torch.use_deterministic_algorithms(mode > 0)
        torch.set_deterministic_debug_mode(mode)
        filling.fill_uninitialized_memory = was_filling  # type: ignore[attr-defined]


def not_compiled() -> AbstractContextManager[Any]:
    """For batches of any shape: layers that are compiled would be compiled anew for each."""
    # While the compiler is not loaded, which takes seconds, nothing is compiled.
    is_loaded = "torch._dynamo" in sys.modules
    return torch.compiler.set_stance("force_eager") if is_loaded else nullcontext()
