"""What this machine has to train on: facts, asked once, so that `resolve` depends on nothing else.

A test may make a `Machine` of an H200 and resolve a run for it anywhere.
"""

import contextlib
import functools
import platform
from dataclasses import dataclass

import torch

from groundup.errors import ConfigError
from groundup.nn import float8
from groundup.nn.kernels import HAS_TRITON
from groundup.planner.hardware import Precision, peak_flops_per_second
from groundup.runs.config import RunConfig
from groundup.runtime import matmul_seconds, memory_bytes

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
        device = _find_device(device)
        name = _device_name(device)
        if not device.startswith("cuda"):
            return cls(device, name, memory_bytes())
        properties = torch.cuda.get_device_properties(torch.device(device))
        why_no_float8 = float8.why_not(torch.device(device))
        if not HAS_TRITON:
            why_no_float8 = "Triton, which its kernels need, is not installed"
        return cls(
            device,
            name,
            properties.total_memory,
            torch.cuda.is_bf16_supported(including_emulation=False),
            HAS_TRITON,
            why_no_float8,
        )


def device_name(config: RunConfig) -> str:
    """The device of a resolved run as its maker calls it."""
    return _device_name(config.device)


def matmul_precision(config: RunConfig) -> Precision:
    """What matmuls are computed in; MFU is in parts of its peak. Of float8 steps a good part, and
    all that is evaluated, is bfloat16."""
    if config.evaluation_precision == "bfloat16":
        return "bfloat16"
    return "tf32" if config.tf32 and config.device.startswith("cuda") else "float32"


def find_peak(config: RunConfig) -> float | None:
    """The device's peak in floating-point operations a second, from the data sheet of a GPU and
    measured on a CPU. It is the same all through a process; None where nobody knows."""
    precision = matmul_precision(config)
    if config.device.startswith("cuda"):
        return peak_flops_per_second(device_name(config), precision)
    if config.device == "cpu":
        dtype = "bfloat16" if precision == "bfloat16" else "float32"
        return torch.get_num_threads() * core_peak(dtype)
    return None


@functools.cache
def core_peak(dtype: str) -> float:
    """The peak of one core, measured once: who asks twice has to get the same answer.

    Eight times in new processes on two busy cores, the best of 0.3 s of matmuls on both was between
    35 and 331 GFLOP/s, twice that of 0.1 s on one between 316 and 332 (2026-11).
    """
    return 2 * _MATMUL_SIZE**3 / matmul_seconds(dtype, _MATMUL_SIZE)


def _find_device(device: str) -> str:
    has_cuda, has_mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if device == "auto":
        return "cuda" if has_cuda else "mps" if has_mps else "cpu"
    version = f"this torch ({torch.__version__})"
    if device == "mps" and not has_mps:
        raise ConfigError(f"device is mps, but {version} finds no MPS: use --device auto")
    if not device.startswith("cuda"):
        return device
    count = torch.cuda.device_count() if has_cuda else 0
    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        raise ConfigError(
            f"device is {device}, but {version} is built without CUDA: install a CUDA build from "
            f"https://pytorch.org/get-started, or use --device auto"
        )
    if count == 0:
        raise ConfigError(
            f"device is {device}, but torch finds no CUDA device: check the driver with "
            f"nvidia-smi, or use --device auto"
        )
    if int(device.partition(":")[2] or 0) >= count:
        raise ConfigError(f"device is {device}, but the last of {count} is cuda:{count - 1}")
    return device


def _device_name(name: str) -> str:
    device = torch.device(name)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        found = (line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
        processor = next(found, processor)
    return processor if device.type == "cpu" else f"{processor} ({device.type})"
