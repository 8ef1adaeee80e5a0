"""The process and its machine: logging, progress, seeds, cores, memory, CPU features.

torch is imported only inside the functions that need it, so that commands without it start fast.
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
"""Callback for progress: the amount done, and the total if known."""

Engine = Callable[[Callable[[Any], Iterator[Any]], Sequence[Any]], Iterator[Iterator[Any]]]
"""Calls a generator function on each task, possibly on other machines, and yields its iterators in
order; exhaust each before taking the next. `map` is an engine."""

STARTED = time.monotonic()
"""About when this process started: this module is one of the first to be imported."""


# Control characters except newlines and tabs, and characters that change the text direction.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def escape_controls(text: str) -> str:
    """Escape control characters in untrusted text (file names, model output) for a terminal."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class SafeFormatter(logging.Formatter):
    """Escapes control characters: records quote names and messages of untrusted files."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_controls(super().format(record))


class _ToStderr(logging.Handler):
    """Prints records to the current sys.stderr, with a prefix such as `warning: ` above INFO."""

    def emit(self, record: logging.LogRecord) -> None:
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        print(f"{level}{SafeFormatter().format(record)}", file=sys.stderr, flush=True)


def is_first_rank() -> bool:
    """Whether this process should print: only rank 0 does under torchrun."""
    return "WORLD_SIZE" not in os.environ or os.environ.get("RANK", "0") == "0"


def set_up_logging() -> None:
    """Send groundup's log records to stderr, on the first rank only; others have log files."""
    logger = logging.getLogger("groundup")
    logger.setLevel(logging.INFO)
    if not logger.handlers:
        # Without any handler, Python would print warnings.
        logger.addHandler(_ToStderr() if is_first_rank() else logging.NullHandler())


def format_duration(seconds: float) -> str:
    """Format a duration in a suitable unit: 40 ms, 12.5 s, 4.5 minutes, 3.0 hours, 2.1 days."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.1f} s"


def count_of(number: int, noun: str) -> str:
    """Format a count with its noun: count_of(1, "document") is "1 document"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def num_cores() -> int:
    """Return the number of cores in this process's CPU affinity, or all if that is unknown."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def memory_bytes(system: Path = Path("/")) -> int:
    """Return the memory this process may use: the machine's, or its container's limit."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        # "max" means no limit.
        with contextlib.suppress(OSError, ValueError):
            limits.append(int((system / "sys/fs/cgroup" / name).read_text("ascii")))
    return min(limits)


def free_memory_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return the memory available without swapping; if unknown, `memory_bytes`."""
    with contextlib.suppress(OSError):
        if found := re.search(r"MemAvailable: +(\d+) kB", meminfo.read_text("ascii")):
            return min(memory_bytes(), int(found[1]) * 1024)
    return memory_bytes()


def slow_bfloat16_reason() -> str | None:
    """Return why this CPU should not compute in bfloat16; None if it has bfloat16 instructions, or
    the system does not list its instruction sets.

    Time of a 512 x 512 matmul in bfloat16 relative to float32, two threads (2026-11): 0.3 with AMX,
    1.6 with avx512_bf16, 5 with AVX-512 only, 7 to 100 with AVX2, 300 on a Neoverse N1.
    """
    # Linux's names: the first two on x86, the last on Arm.
    if not (flags := _cpu_flags()) or flags & {"avx512_bf16", "amx_bf16", "bf16"}:
        return None
    return "this CPU has no bfloat16 instructions, so matmuls take many times as long as in float32"


def is_onednn_slow() -> bool:
    """Whether a CPU step is faster without oneDNN: on Arm without SVE, by 2% (Neoverse N1, three
    shapes in float32, torch 2.13; 2026-11)."""
    is_arm_linux = sys.platform == "linux" and platform.machine() == "aarch64"
    return is_arm_linux and "sve" not in _cpu_flags()


def _cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> set[str]:
    """Return the first core's instruction sets as listed by Linux; empty on other systems."""
    with contextlib.suppress(OSError):
        text = cpuinfo.read_text("utf-8", "replace")
        if found := re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE):
            return set(found[1].split())
    return set()


def peak_memory_bytes() -> int:
    """Return the peak resident memory of this process.

    Prefers /proc on Linux, where getrusage includes the parent's peak.
    """
    with contextlib.suppress(OSError):
        status = Path("/proc/self/status").read_text("ascii", "replace")
        if found := re.search(r"VmHWM:\s*(\d+)", status):
            return int(found[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def keep_freed_memory() -> bool:
    """Make malloc keep freed memory for the rest of the process; False if it does not support that.

    glibc returns large blocks to the system, which has to zero the pages of new ones: an eighth of
    a training step on two cores.
    """
    import ctypes

    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    trim_threshold, mmap_threshold = -1, -3
    largest = 2**31 - 1
    return bool(set_option(mmap_threshold, largest) and set_option(trim_threshold, largest))


def release_freed_memory() -> None:
    """Give freed memory that malloc has kept back to the system, if supported."""
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
