"""When this process began, on the clock of time.monotonic."""

import os
import time

_IMPORTED = time.monotonic()
# In /proc/PID/stat, counted after the name of the program, which may hold anything.
_STARTED_FIELD = 19


def process_start() -> float:
    """As Linux tells it; elsewhere the moment at which this module was imported."""
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        ticks = int(fields[_STARTED_FIELD])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return _IMPORTED
    # A machine that slept, or a container with a clock of its own, may tell nonsense.
    return min(_IMPORTED, time.monotonic() - age) if age >= 0 else _IMPORTED
