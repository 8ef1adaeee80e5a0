"""What the process says about itself: cores, memory, seeds, log lines."""

import logging
import os
import platform
import random
import subprocess
import sys

import pytest

from groundup import runtime


def test_cores_are_those_the_process_may_use() -> None:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system has no affinity")
    script = (
        "import os; from groundup.runtime import num_cores\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(num_cores())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "1\n", done.stderr


def test_peak_memory_counts_what_was_touched() -> None:
    size = 64 << 20
    script = (
        "from groundup.runtime import peak_memory_bytes\n"
        f"before = peak_memory_bytes(); block = b'x' * {size}; del block\n"
        "print(peak_memory_bytes() - before)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert size * 0.9 <= int(done.stdout) <= size * 1.5, done.stderr


def test_a_seed_fixes_every_generator() -> None:
    numpy = pytest.importorskip("numpy")
    torch = pytest.importorskip("torch")

    def draw() -> tuple[float, float, float]:
        return random.random(), float(numpy.random.rand()), float(torch.rand(()))

    runtime.set_seed(2**40 + 7)
    first = draw()
    runtime.set_seed(2**40 + 7)
    assert draw() == first
    runtime.set_seed(8)
    assert draw() != first


def test_log_lines_go_to_stderr_once_and_warnings_say_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runtime.set_up_logging()
    runtime.set_up_logging()
    log = logging.getLogger("groundup.somewhere")
    log.info("reading a.txt")
    log.warning("b.txt is empty")
    log.debug("not shown")
    assert capsys.readouterr() == ("", "reading a.txt\nwarning: b.txt is empty\n")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the option")
def test_freed_memory_is_kept() -> None:
    """In a process of its own: the option cannot be taken back."""
    script = (
        "import resource\n"
        "from groundup.runtime import keep_freed_memory\n"
        "assert keep_freed_memory()\n"
        "def faults():\n"
        "    bytes(bytearray(64 << 20))\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "faults()\n"
        "before = faults()\n"
        "assert faults() - before < 1000, faults() - before\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
