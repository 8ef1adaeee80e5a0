"""What the process runs on: logging, progress, seeds, cores, memory, its clock, the CPU.

torch is imported inside the functions that need it, so that tools without tensors start fast.
"""

import contextlib
import functools
import logging
import os
import platform
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

Progress = Callable[[int, int | None], None]
"""What long work calls as often as it likes, with how much is done and of how much, if known."""

Engine = Callable[[Callable[[Any], Iterator[Any]], Sequence[Any]], Iterator[Iterator[Any]]]
"""Calls a function on tasks, wherever that may be: for each task, in order, an iterator over what
the function yields, to be exhausted before the next. `map` is one."""

# As Linux names them: of x86 the first two, of Arm the last.
_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
# Between emulation, which takes 4 times as long as float32 and more, and instructions that torch
# uses although Linux does not list them, which take about as long.
_MOST_BFLOAT16_SLOWDOWN = 3.0
_MATMUL_SIZE = 128
# Matmuls are timed for so long, but no more than so many.
_MATMUL_SECONDS = 0.1
_MAX_MATMULS = 100
_FEW_PRODUCTS = 1 << 26
_IMPORTED = time.monotonic()
# In /proc/PID/stat, counted after the name of the program, which may hold anything.
_STARTED_FIELD = 19


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to whatever sys.stderr is at the time, so that redirections are honoured."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> object:
        return sys.stderr


class _Formatter(logging.Formatter):
    """Plain text for what went as meant, `warning: …` and `error: …` for what did not."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if record.levelno < logging.WARNING:
            return text
        return f"{record.levelname.lower()}: {text}"


def is_first_rank() -> bool:
    """Whether this process may speak to the user: of those that torchrun started, one does."""
    return "WORLD_SIZE" not in os.environ or os.environ.get("RANK", "0") == "0"


def set_up_logging(level: int = logging.INFO) -> None:
    """Send groundup's log records to stderr; calling it again only changes the level."""
    logger = logging.getLogger("groundup")
    logger.setLevel(level)
    if not is_first_rank():
        # Its log file takes them; without a handler Python would print warnings.
        logger.addHandler(logging.NullHandler())
    elif not any(isinstance(handler, _StderrHandler) for handler in logger.handlers):
        handler = _StderrHandler()
        handler.setFormatter(_Formatter())
        logger.addHandler(handler)


def format_duration(seconds: float) -> str:
    """A time in the unit that suits it: 40 ms, 12.5 s, 4.5 minutes, 3.0 hours, 2.1 days."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.1f} s"


def count_of(number: int, noun: str, plural: str | None = None) -> str:
    """A number of things in words: count_of(1, "document") is "1 document".

    Args:
        number: How many.
        noun: The singular.
        plural: The plural, where it is not the singular and an s.
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def process_start() -> float:
    """When this process began, on the clock of time.monotonic.

    As Linux tells it; elsewhere the moment at which this module was imported.
    """
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        ticks = int(fields[_STARTED_FIELD])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return _IMPORTED
    # A machine that slept, or a container with a clock of its own, may tell nonsense.
    return min(_IMPORTED, time.monotonic() - age) if age >= 0 else _IMPORTED


def num_cores() -> int:
    """How many cores this process may use: its affinity where the system has one."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def memory_bytes(system: Path = Path("/")) -> int:
    """The memory this process may use: the machine's, or less where its container says so."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *_container_limits(system)])


def _container_limits(system: Path) -> Iterator[int]:
    """Linux's limits on the process's control group and on those around it, in either version."""
    try:
        lines = (system / "proc/self/cgroup").read_text("utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            top, name = system / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            top, name = system / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        group = top / path.lstrip("/")
        while group.is_relative_to(top):
            # In a container the path may be that of the host, and only the top is there.
            with contextlib.suppress(OSError, ValueError):
                yield int((group / name).read_text("ascii"))
            group = group.parent


@functools.cache
def why_no_bfloat16() -> str | None:
    """The reason why this CPU should not compute in bfloat16; None where it has units for it.

    The flags of the CPU decide where the system lists them. Without such a flag, or without a list,
    one small matmul is timed in both precisions. bfloat16 over float32 on two threads, 512 x 512
    (2026-11): 0.3 with AMX, 1.6 with avx512_bf16, 5 with AVX-512 alone, 7 to 100 with AVX2, 300 on
    an Arm core without bf16 (Neoverse N1).
    """
    if _cpu_flags() & _BFLOAT16_FLAGS:
        return None
    slowdown = _bfloat16_slowdown()
    if slowdown <= _MOST_BFLOAT16_SLOWDOWN:
        return None
    return (
        f"this CPU has no bfloat16 instructions that torch uses, so a matmul takes about "
        f"{float(f'{slowdown:.1g}'):.0f} times as long as in float32"
    )


def is_onednn_slow() -> bool:
    """Whether a CPU step is faster without oneDNN: on Arm without SVE it is by 2% (Neoverse N1,
    three shapes in float32, torch 2.13; 2026-11)."""
    return is_arm_linux() and "sve" not in _cpu_flags()


def is_small_to_orthogonalize(rows: int, columns: int) -> bool:
    """Whether Muon's products of a matrix are too small to be shared by the threads of a CPU: a
    kernel of ours then gives each thread matrices of its own."""
    return 0 < rows * columns * min(rows, columns) <= _FEW_PRODUCTS


def is_arm_linux() -> bool:
    """Whether this is Linux on 64-bit Arm."""
    return sys.platform == "linux" and platform.machine() == "aarch64"


def _cpu_flags(system: Path = Path("/")) -> frozenset[str]:
    """The instruction sets that Linux lists, of the first core; none on other systems."""
    try:
        lines = (system / "proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        name, _, flags = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(flags.split())
    return frozenset()


def _bfloat16_slowdown() -> float:
    """The time of a matmul in bfloat16 over that in float32, on one thread."""
    with warnings.catch_warnings():
        # torch may warn that oneDNN has no such matmul.
        warnings.simplefilter("ignore")
        seconds = [matmul_seconds(dtype, _MATMUL_SIZE) for dtype in ("float32", "bfloat16")]
    return seconds[1] / seconds[0]


def matmul_seconds(dtype: str, size: int) -> float:
    """The shortest of as many matmuls of two square matrices as a moment has room for.

    One thread is timed, not all: where others compute too, threads wait for each other. A core may
    take twice as long for the first few dozen.
    """
    import torch

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        matrix = torch.ones(size, size, dtype=getattr(torch, dtype), device="cpu")
        torch.mm(matrix, matrix)
        best = float("inf")
        began = time.perf_counter()
        for _ in range(_MAX_MATMULS):
            before = time.perf_counter()
            torch.mm(matrix, matrix)
            now = time.perf_counter()
            best = min(best, now - before)
            if now - began > _MATMUL_SECONDS:
                break
    finally:
        torch.set_num_threads(num_threads)
    return max(best, 1e-9)


def peak_memory_bytes() -> int:
    """The most resident memory this process has had so far.

    Linux's own high-water mark comes first: getrusage there starts from the parent's peak.
    """
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def keep_freed_memory() -> bool:
    """Let the process keep the memory it frees, for the rest of its life; False where it cannot.

    glibc gives large blocks back at once and gets fresh ones from the system, which clears them
    page by page: an eighth of a training step on two cores.
    """
    import ctypes

    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    trim_threshold, mmap_threshold = -1, -3
    most = 2**31 - 1
    return bool(set_option(mmap_threshold, most) and set_option(trim_threshold, most))


def allocates_by_mimalloc() -> bool:
    """Whether torch's tensors come from mimalloc: in its builds for Arm under Linux (2.13)."""
    return is_arm_linux()


def set_seed(seed: int) -> None:
    """Seed Python's, NumPy's and torch's global generators."""
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)
