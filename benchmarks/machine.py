"""The machine of a job: cores, clocks, memory, and its description."""

from __future__ import annotations

import contextlib
import gc
import importlib.metadata
import importlib.util
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from groundup.planner import find_accelerator
from groundup.runtime import memory_bytes, num_cores

# Tools whose package has a different name.
_PACKAGES = {"gpt": "torch", "huggingface": "transformers"}
# Peak memory bandwidth in bytes per second, from data sheets, by the planner's device names.
_BANDWIDTHS = {
    "A100": 1.555e12,
    "H100": 3.35e12,
    "H100 PCIE": 2.0e12,
    "H200": 4.8e12,
    "H200 NVL": 4.8e12,
    "L4": 0.3e12,
    "RTX 4090": 1.008e12,
}


class Timing(NamedTuple):
    """The result of a call and its time."""

    result: Any
    seconds: float


def timed(call: Callable[..., Any], *arguments: Any) -> Timing:
    """Time a call in wall-clock time, without garbage collection."""
    gc.collect()
    gc.disable()
    try:
        started = time.perf_counter()
        result = call(*arguments)
        return Timing(result, time.perf_counter() - started)
    finally:
        gc.enable()


def timed_again(call: Callable[..., Any], make: Callable[[], Any], num_calls: int) -> Timing:
    """Call with each set of arguments; return the last result and medians."""
    timings = [timed(call, *make()) for _ in range(num_calls)]
    return Timing(timings[-1].result, statistics.median(timing.seconds for timing in timings))


def timed_on_cuda(call: Callable[..., Any], make: Callable[[], Any], num_calls: int) -> Timing:
    """The same in device time: kernels may run long after the calls return."""
    import torch

    spans = []
    for _ in range(num_calls):
        arguments = make()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        result = call(*arguments)
        end.record()
        spans.append((begin, end))
    torch.cuda.synchronize()
    return Timing(result, statistics.median(a.elapsed_time(b) / 1e3 for a, b in spans))


class PeakMemory:
    """Growth of the peak resident memory since this object was created."""

    def __init__(self) -> None:
        gc.collect()
        # Linux can reset the high-water mark; elsewhere the peak is that of the whole process.
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self._before = _status_bytes("VmRSS")

    def growth_bytes(self) -> int | None:
        peak = _status_bytes("VmHWM")
        return None if peak is None or self._before is None else max(0, peak - self._before)


def use_cores(count: int) -> None:
    """Restrict this process to this number of cores, before any library counts them."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[-count:])


def find_device(asked: str) -> str:
    """cpu or cuda; "auto" prefers cuda."""
    if asked == "cpu":
        return asked
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if asked == "cuda":
        sys.exit("error: torch finds no CUDA device here; use --device cpu")
    return "cpu"


def is_installed(tool: str) -> bool:
    return importlib.util.find_spec(_package_of(tool)) is not None


def describe_versions(tools: Iterable[str]) -> dict[str, str]:
    """The versions of the tools' packages, groundup and Python."""
    versions = {"python": platform.python_version()}
    for name in sorted({_package_of(tool) for tool in tools}):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            module = importlib.import_module(name)
            versions[name] = str(getattr(module, "__version__", "unknown"))
    return versions


def _package_of(tool: str) -> str:
    """The tool's name without the variant after the comma."""
    name = tool.partition(",")[0]
    return _PACKAGES.get(name, name)


def result_name(benchmark: str) -> str:
    """The file of a result, named by benchmark and kind of machine."""
    return f"{benchmark}_{platform.machine()}.json"


def describe_hardware(device: str = "cpu") -> dict[str, Any]:
    from groundup.training.machine import device_name

    return {
        "cpu": device_name("cpu"),
        "cores": num_cores(),
        "memory_bytes": memory_bytes(),
        "system": f"{platform.system()} {platform.machine()}",
        "load_before": round(os.getloadavg()[0], 2),
        **(_describe_cuda() if device == "cuda" else {}),
    }


def peak_bytes_per_second(device: str) -> float | None:
    """The device's peak memory bandwidth; None if unknown."""
    if device != "cuda":
        return None
    import torch

    found = find_accelerator(torch.cuda.get_device_name())
    return None if found is None else _BANDWIDTHS.get(found.name)


def _describe_cuda() -> dict[str, Any]:
    import torch

    device = torch.cuda.get_device_properties(0)
    return {
        "accelerator": device.name,
        "accelerator_memory_bytes": device.total_memory,
        "cuda": torch.version.cuda,
    }


def _status_bytes(field: str) -> int | None:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
