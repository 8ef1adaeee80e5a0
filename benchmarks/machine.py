"""What a job runs on: its cores, its clock, its memory, and the words that describe the machine."""

from __future__ import annotations

import gc
import importlib.metadata
import importlib.util
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

# The name of a tool, its module and its package, where they differ.
_MODULES = {"splintr-rs": "splintr"}


class Timing(NamedTuple):
    """What a call gave and took."""

    result: Any
    seconds: float
    cpu_seconds: float


def timed(call: Callable[..., Any], *arguments: Any) -> Timing:
    """Call once, by the wall clock and by the processor time of all threads."""
    gc.collect()
    gc.disable()
    try:
        cpu = time.process_time()
        started = time.perf_counter()
        result = call(*arguments)
        seconds = time.perf_counter() - started
        return Timing(result, seconds, time.process_time() - cpu)
    finally:
        gc.enable()


class PeakMemory:
    """The most resident memory since this was made, above what there was then."""

    def __init__(self) -> None:
        gc.collect()
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            pass
        self._before = _status_bytes("VmRSS")

    def growth_bytes(self) -> int | None:
        peak = _status_bytes("VmHWM")
        return None if peak is None or self._before is None else max(0, peak - self._before)


class PrivateMemory:
    """The same for memory that no file backs: mapped input does not count. Looks every few ms."""

    _PERIOD_SECONDS = 0.005

    def __init__(self) -> None:
        self.growth_bytes: int | None = None
        self.num_samples = 0

    def __enter__(self) -> PrivateMemory:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        if os.path.exists("/proc/self/statm"):
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _sample(self) -> None:
        page = os.sysconf("SC_PAGE_SIZE")
        file = os.open("/proc/self/statm", os.O_RDONLY)
        before = None
        while True:
            fields = os.pread(file, 200, 0).split()
            private = (int(fields[1]) - int(fields[2])) * page
            before = private if before is None else before
            self.growth_bytes = max(self.growth_bytes or 0, private - before)
            self.num_samples += 1
            if self._stop.wait(self._PERIOD_SECONDS):
                break
        os.close(file)


def use_cores(count: int) -> None:
    """Keep this process on so many cores, before any library counts them."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[-count:])


def is_installed(tool: str) -> bool:
    return importlib.util.find_spec(_MODULES.get(tool, tool)) is not None


def describe_versions(tools: Iterable[str]) -> dict[str, str]:
    """The version of each tool's package, ours and Python's among them."""
    versions = {"python": platform.python_version()}
    names = sorted({tool.split(",")[0] for tool in tools})
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            module = importlib.import_module(_MODULES.get(name, name))
            versions[name] = str(getattr(module, "__version__", "unknown"))
    return versions


def describe_hardware() -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.machine()}",
        "load_before": round(os.getloadavg()[0], 2),
    }


def _cpu_model() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _status_bytes(field: str) -> int | None:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
