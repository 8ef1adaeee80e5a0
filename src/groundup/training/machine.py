"""The device that a run trains on, how it computes there (precision, compilation, switches), and
the description of both for environment.json.

`Machine` has everything that `resolve` depends on: a test can resolve a run for an H200 on any
machine.
"""

import contextlib
import datetime
import functools
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from groundup import __version__
from groundup.data.shards import DataIds
from groundup.errors import ConfigError
from groundup.model import TransformerLM
from groundup.nn import float8
from groundup.nn.kernels import HAS_TRITON
from groundup.planner.hardware import Precision, peak_flops_per_second
from groundup.runs.config import RunConfig
from groundup.runtime import is_onednn_slow, keep_freed_memory, memory_bytes, num_cores
from groundup.text_files import path_text

# A peak is measured by matmuls of this size.
_MATMUL_SIZE = 512


@dataclass(frozen=True)
class Machine:
    """The device that a run trains on."""

    device: str
    """cpu, mps, cuda or cuda:N."""
    name: str
    memory_bytes: int
    """Total memory: free memory may differ when the run is resumed."""
    has_bfloat16: bool = False
    has_triton: bool = False
    why_no_float8: str | None = "float8 is for CUDA"

    @classmethod
    def detect(cls, device: str = "auto") -> "Machine":
        """The named device, or the fastest available; ConfigError if it is missing."""
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
        gpu = torch.device(device)
        memory = torch.cuda.get_device_properties(gpu).total_memory
        has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
        reason = float8.unsupported_reason(gpu) if HAS_TRITON else "Triton is not installed"
        return cls(device, device_name(device), memory, has_bfloat16, HAS_TRITON, reason)


def device_name(name: str) -> str:
    """The device's product name."""
    device = torch.device(name)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        found = (line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
        processor = next(found, processor)
    return processor if device.type == "cpu" else f"{processor} ({device.type})"


def matmul_precision(config: RunConfig) -> Precision:
    """The precision of matmuls, whose peak MFU refers to. float8 runs count as bfloat16: much of a
    step, and every evaluation, is."""
    if config.evaluation_precision == "bfloat16":
        return "bfloat16"
    return "tf32" if config.tf32 and config.device.startswith("cuda") else "float32"


def find_peak(config: RunConfig) -> float | None:
    """Peak FLOP/s: from a GPU's data sheet, measured on a CPU; None if unknown."""
    precision = matmul_precision(config)
    if config.device.startswith("cuda"):
        return peak_flops_per_second(device_name(config.device), precision)
    if config.device == "cpu":
        return torch.get_num_threads() * core_peak(precision)
    return None


@functools.cache
def core_peak(dtype: str) -> float:
    """The peak of one core; cached, so that repeated calls agree.

    The fastest of many matmuls: the first few dozen may be slow. Measured on one core, because
    other processes can distort a measurement on all cores tenfold.
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
    """Compute matmuls in the run's precision; weights stay in float32."""
    if config.precision == "float32":
        return nullcontext()
    return torch.autocast(torch.device(config.device).type, dtype=torch.bfloat16)


@contextlib.contextmanager
def switches(config: RunConfig) -> Iterator[None]:
    """Set torch's process-wide switches for the run, and restore them afterwards."""
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
            # Beyond its limit of shapes torch would stop compiling: slower, and other rounding.
            limits = {"recompile_limit": _NO_LIMIT, "accumulated_recompile_limit": _NO_LIMIT}
            stack.enter_context(torch._dynamo.config.patch(limits))
        # By default torch's CPU threads sum embedding gradients in no fixed order; a fixed order
        # costs nothing.
        if config.deterministic or is_cpu:
            stack.enter_context(_deterministic(is_compiled=config.compile != "off"))
        if config.deterministic and is_cuda:
            # The backward passes of other backends sum in no fixed order.
            stack.enter_context(sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]))
        yield


def compile_model(model: TransformerLM, config: RunConfig) -> None:
    """Compile the model in place; names and weights do not change."""
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
    # cuBLAS reads this at startup and needs it to be deterministic.
    os.environ.setdefault(_CUBLAS_WORKSPACE, ":4096:8")
    torch.set_deterministic_debug_mode("error")
    if is_compiled:
        # Also sets a switch of the compiler, whose import takes two seconds on a slow core.
        torch.use_deterministic_algorithms(True)
    # Filling memory finds uninitialized reads, but costs a write of all of it.
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
    """For batches of many shapes, each of which would be compiled anew."""
    # Without the compiler loaded, which takes seconds, nothing is compiled.
    is_loaded = "torch._dynamo" in sys.modules
    return torch.compiler.set_stance("force_eager") if is_loaded else nullcontext()


def describe_environment(config: RunConfig, data: DataIds, end_id: int | None) -> dict[str, Any]:
    """Everything besides the settings that decides a run, for environment.json."""
    # Omit `mix` for a run without one.
    hidden = ("folder",) if data.mix is not None else ("folder", "mix")
    versions = {"groundup": __version__, "torch": torch.__version__, "numpy": numpy.__version__}
    return {
        **versions,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "device": device_name(config.device),
        "peak_flops_per_second": find_peak(config),
        "num_cores": num_cores(),
        "num_threads": torch.get_num_threads(),
        "git_commit": _git_commit(),
        "command": list(map(path_text, sys.argv)),
        "seed": config.seed,
        "data": {name: value for name, value in asdict(data).items() if name not in hidden},
        "end_id": end_id,
        "started": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def _git_commit() -> str | None:
    """The commit of the current repository, with "-dirty" if files have changed."""
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
