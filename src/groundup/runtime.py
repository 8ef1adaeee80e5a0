"""What the process runs on: logging, seeds, cores and memory.

torch is imported inside the functions that need it, so that tools without tensors start fast.
"""

import contextlib
import logging
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path


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


def set_up_logging(level: int = logging.INFO) -> None:
    """Send groundup's log records to stderr; calling it again only changes the level."""
    logger = logging.getLogger("groundup")
    logger.setLevel(level)
    if not any(isinstance(handler, _StderrHandler) for handler in logger.handlers):
        handler = _StderrHandler()
        handler.setFormatter(_Formatter())
        logger.addHandler(handler)


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


def set_seed(seed: int) -> None:
    """Seed Python's, NumPy's and torch's global generators."""
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)
