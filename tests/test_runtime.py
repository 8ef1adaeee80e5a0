"""What the process says about itself: cores, memory, seeds, log lines."""

import io
import logging
import os
import platform
import random
import subprocess
import sys
import time
from pathlib import Path

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


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/job/run", {"job/memory.max": "max", "job/run/memory.max": "5000"}, 5000),
        ("0::/job/run", {"job/memory.max": "3000", "job/run/memory.max": "5000"}, 3000),
        ("0::/", {"memory.max": "7000"}, 7000),
        ("4:memory,cpu:/docker/abc", {"memory/memory.limit_in_bytes": "6000"}, 6000),
        ("3:cpu:/x", {"memory/memory.limit_in_bytes": "6000"}, None),
        ("0::/../..", {"memory.max": "7000"}, 7000),
        ("0::/job", {"job/memory.max": "9223372036854771712"}, None),
        ("nonsense", {}, None),
    ],
)
def test_memory_is_what_the_container_allows(
    tmp_path: Path, groups: str, limits: dict[str, str], expected: int | None
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"1:name=systemd:/\n{groups}\n")
    for name, limit in limits.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{limit}\n")
    machine = runtime.memory_bytes(tmp_path / "nowhere")
    assert runtime.memory_bytes(tmp_path) == (machine if expected is None else expected)


@pytest.mark.parametrize(
    ("cpuinfo", "has_units"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512_bf16\n", True),
        ("flags\t\t: fpu amx_tile amx_bf16\n", True),
        ("Features\t: fp asimd bf16 i8mm\n", True),
        ("flags\t\t: fpu avx2 avx512f avx512vl\n", False),
        ("Features\t: fp asimd asimddp\n", False),
        ("model name\t: bf16\n", False),
        (None, False),
    ],
)
def test_flags_tell_of_bfloat16(tmp_path: Path, cpuinfo: str | None, has_units: bool) -> None:
    if cpuinfo is not None:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc/cpuinfo").write_text(cpuinfo)
    assert bool(runtime._cpu_flags(tmp_path) & runtime._BFLOAT16_FLAGS) == has_units


@pytest.mark.parametrize(
    ("flags", "slowdown", "told"),
    [
        ({"amx_bf16"}, None, None),
        ({"avx512f"}, 4.8, "about 5 times"),
        (set(), 287.0, "about 300 times"),
        (set(), 1.4, None),
    ],
)
def test_a_cpu_without_the_flag_is_timed(
    monkeypatch: pytest.MonkeyPatch, flags: set[str], slowdown: float | None, told: str | None
) -> None:
    monkeypatch.setattr(runtime, "_cpu_flags", lambda: flags)
    monkeypatch.setattr(runtime, "_bfloat16_slowdown", lambda: slowdown)
    reason = runtime.why_no_bfloat16.__wrapped__()
    assert reason is None if told is None else told in str(reason)


def test_a_slow_start_does_not_count_in_the_time_of_a_matmul(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch")
    clock = iter(range(10**6))
    # The first twenty take three ticks, the others one.
    calls: list[int] = []

    def multiply(*matrices: object) -> None:
        calls.append(1)
        for _ in range(2 if len(calls) <= 20 else 0):
            next(clock)

    monkeypatch.setattr(torch, "mm", multiply)
    monkeypatch.setattr(time, "perf_counter", lambda: 1e-4 * next(clock))
    num_threads = torch.get_num_threads()
    assert runtime.matmul_seconds("float32", 8) == pytest.approx(1e-4)
    assert torch.get_num_threads() == num_threads


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


def test_a_process_began_before_it_could_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = runtime._IMPORTED
    assert 0 < runtime.process_start() <= imported <= time.monotonic()
    for told in ("", "1 (a) b) R 2", "1 (a) " + "nothing " * 20):
        monkeypatch.setattr("builtins.open", lambda *_, text=told, **__: io.StringIO(text))
        assert runtime.process_start() == imported


def test_a_duration_is_shown_in_the_unit_that_suits_it() -> None:
    shown = [runtime.format_duration(seconds) for seconds in (0.05, 119.0, 120.0, 9_000.0, 5e5)]
    assert shown == ["50 ms", "119.0 s", "2.0 minutes", "2.5 hours", "5.8 days"]


def test_one_thing_has_no_plural() -> None:
    shown = [runtime.count_of(number, "document") for number in (0, 1, 2, 1000)]
    assert shown == ["0 documents", "1 document", "2 documents", "1,000 documents"]
    assert runtime.count_of(1, "story", "stories") == "1 story"
    assert runtime.count_of(3, "story", "stories") == "3 stories"
