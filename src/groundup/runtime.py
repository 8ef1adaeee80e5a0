"""What the process runs on: logging, progress, seeds, cores, memory, its clock, the CPU.

torch is imported inside the functions that need it, so that tools without tensors start fast.
"""

import contextlib
import logging
import os
import platform
import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

Progress = Callable[[int, int | None], None]
"""What long work calls as often as it likes, with how much is done and of how much, if known."""

Engine = Callable[[Callable[[Any], Iterator[Any]], Sequence[Any]], Iterator[Iterator[Any]]]
"""Calls a function on tasks, wherever that may be: for each task, in order, an iterator over what
the function yields, to be exhausted before the next. `map` is one."""

STARTED = time.monotonic()
"""When this process began, nearly: this module is among the first that are imported."""


# Control characters but line ends and tabs, and those that turn the direction of writing.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def without_controls(text: str) -> str:
    """Foreign text that cannot command a terminal: names of files, what a model writes."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class _ToStderr(logging.Handler):
    """Plain text for what went as meant, `warning: …` for what did not, to whatever sys.stderr is
    at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        print(without_controls(f"{level}{self.format(record)}"), file=sys.stderr, flush=True)


def is_first_rank() -> bool:
    """Whether this process may speak to the user: of those that torchrun started, one does."""
    return "WORLD_SIZE" not in os.environ or os.environ.get("RANK", "0") == "0"


def set_up_logging() -> None:
    """Send groundup's log records to stderr; the log file takes those of other ranks."""
    logger = logging.getLogger("groundup")
    logger.setLevel(logging.INFO)
    if not logger.handlers:
        # Without a handler Python would print warnings.
        logger.addHandler(_ToStderr() if is_first_rank() else logging.NullHandler())


def format_duration(seconds: float) -> str:
    """A time in the unit that suits it: 40 ms, 12.5 s, 4.5 minutes, 3.0 hours, 2.1 days."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.1f} s"


def count_of(number: int, noun: str) -> str:
    """A number of things in words: count_of(1, "document") is "1 document"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def num_cores() -> int:
    """How many cores this process may use: its affinity where the system has one."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def memory_bytes(system: Path = Path("/")) -> int:
    """The memory this process may use: the machine's, or less where its container says so."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        # An unlimited group says "max".
        with contextlib.suppress(OSError, ValueError):
            limits.append(int((system / "sys/fs/cgroup" / name).read_text("ascii")))
    return min(limits)


def free_memory_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Memory that can be had without swapping; all of the machine's if the system does not say."""
    with contextlib.suppress(OSError):
        if found := re.search(r"MemAvailable: +(\d+) kB", meminfo.read_text("ascii")):
            return min(memory_bytes(), int(found[1]) * 1024)
    return memory_bytes()


def why_no_bfloat16() -> str | None:
    """The reason why this CPU should not compute in bfloat16; None where it has units for it, or
    where the system lists no instruction sets.

    A 512 x 512 matmul in bfloat16 over one in float32, two threads (2026-11): 0.3 with AMX, 1.6
    with avx512_bf16, 5 with AVX-512 alone, 7 to 100 with AVX2, 300 on a Neoverse N1.
    """
    # As Linux names them: of x86 the first two, of Arm the last.
    if not (flags := _cpu_flags()) or flags & {"avx512_bf16", "amx_bf16", "bf16"}:
        return None
    return "this CPU has no bfloat16 instructions, so matmuls take many times as long as in float32"


def is_onednn_slow() -> bool:
    """Whether a CPU step is faster without oneDNN: on Arm without SVE it is by 2% (Neoverse N1,
    three shapes in float32, torch 2.13; 2026-11)."""
    is_arm_linux = sys.platform == "linux" and platform.machine() == "aarch64"
    return is_arm_linux and "sve" not in _cpu_flags()


def _cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> set[str]:
    """The instruction sets that Linux lists, of the first core; none on other systems."""
    with contextlib.suppress(OSError):
        text = cpuinfo.read_text("utf-8", "replace")
        if found := re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE):
            return set(found[1].split())
    return set()


def peak_memory_bytes() -> int:
    """The most resident memory this process has had so far.

    Linux's own high-water mark comes first: getrusage there starts from the parent's peak.
    """
    with contextlib.suppress(OSError):
        status = Path("/proc/self/status").read_text("ascii", "replace")
        if found := re.search(r"VmHWM:\s*(\d+)", status):
            return int(found[1]) * 1024
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


def give_back_freed_memory() -> None:
    """Let others have what the process has kept, where it can: once, after a large part of it."""
    import ctypes

    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def set_seed(seed: int) -> None:
    """Seed Python's, NumPy's and torch's global generators."""
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)
