"""The best rate of the device that a run computes on: MFU and the time of a plan are told by it.

From the data sheet on a GPU; measured on a CPU, whose data sheets do not say.
"""

import functools
import time

import torch

from groundup.planner.hardware import peak_flops_per_second
from groundup.runs.config import RunConfig
from groundup.training.execution import device_name

_SIZE = 512
_SECONDS = 0.1
_MOST_PRODUCTS = 100


def find_peak(config: RunConfig) -> float | None:
    """Floating-point operations a second at best, the same all through a process; None where
    nobody knows."""
    if config.device.startswith("cuda"):
        if config.precision == "bfloat16":
            return peak_flops_per_second(device_name(config), "bfloat16")
        return peak_flops_per_second(device_name(config), "tf32" if config.tf32 else "float32")
    if config.device == "cpu":
        is_half = config.precision == "bfloat16"
        return torch.get_num_threads() * core_peak(torch.bfloat16 if is_half else torch.float32)
    return None


@functools.cache
def core_peak(dtype: torch.dtype) -> float:
    """The rate of one core, measured once: who asks twice has to get the same answer.

    One thread is timed, not all: where others compute too, threads wait for each other. Eight times
    in new processes on two busy cores, the best of 0.3 s of products on both was between 35 and 331
    GFLOP/s, twice that of 0.1 s on one between 316 and 332 (2026-11).
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return 2 * _SIZE**3 / _seconds_of_product(dtype)
    finally:
        torch.set_num_threads(num_threads)


def _seconds_of_product(dtype: torch.dtype) -> float:
    """Of two square matrices, the shortest of as many as a moment has room for."""
    matrix = torch.full((_SIZE, _SIZE), 1.0, dtype=dtype)
    torch.mm(matrix, matrix)
    best = float("inf")
    began = time.perf_counter()
    for _ in range(_MOST_PRODUCTS):
        before = time.perf_counter()
        torch.mm(matrix, matrix)
        now = time.perf_counter()
        best = min(best, now - before)
        if now - began > _SECONDS:
            break
    return max(best, 1e-9)
