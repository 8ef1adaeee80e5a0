"""The process and its machine: cores, memory, seeds, logging, errors."""

import logging
import pickle
import random
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch

from groundup import errors, runtime

# In a separate process, because these settings cannot be undone.
PROGRAM = """
import os, platform, resource
from groundup.runtime import *

if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    assert num_cores() == 1
before = peak_memory_bytes()
block = b"x" * (64 << 20)
del block
assert 0.9 <= (peak_memory_bytes() - before) / (64 << 20) <= 1.5

def faults():
    bytes(bytearray(64 << 20))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if platform.libc_ver()[0] == "glibc":
    assert keep_freed_memory()
    faults()
    assert -faults() + faults() < 1000
"""


def test_cores_and_memory_reflect_limits() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "limit", "expected"),
    [
        ("memory.max", "7000", 7000),
        ("memory/memory.limit_in_bytes", "6000", 6000),
        ("memory.max", "max", None),
    ],
)
def test_memory_respects_container_limits(
    tmp_path: Path, name: str, limit: str, expected: int | None
) -> None:
    file = tmp_path / "sys/fs/cgroup" / name
    file.parent.mkdir(parents=True)
    file.write_text(f"{limit}\n")
    machine = runtime.memory_bytes(tmp_path / "nowhere")
    assert runtime.memory_bytes(tmp_path) == (expected or machine)


@pytest.mark.parametrize(
    ("cpuinfo", "has_units"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512_bf16\n", True),
        ("Features\t: fp asimd bf16 i8mm\n", True),
        ("flags\t\t: fpu avx2 avx512f avx512vl\n", False),
        ("Features\t: fp asimd asimddp\n", False),
        ("model name\t: bf16\n", True),
    ],
)
def test_cpu_flags_determine_bfloat16_support(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpuinfo: str, has_units: bool
) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    flags = runtime._cpu_flags(tmp_path / "cpuinfo")
    monkeypatch.setattr(runtime, "_cpu_flags", lambda: flags)
    assert (runtime.slow_bfloat16_reason() is None) == has_units


def test_seeds_set_all_generators() -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(numpy.random.rand()), float(torch.rand(()))

    runtime.set_seed(2**40 + 7)
    first = draw()
    runtime.set_seed(2**40 + 7)
    assert draw() == first
    runtime.set_seed(8)
    assert draw() != first


def test_log_records_go_to_stderr_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runtime.set_up_logging()
    runtime.set_up_logging()
    log = logging.getLogger("groundup.somewhere")
    log.info("reading a.txt")
    log.warning("b.txt is empty")
    log.debug("not shown")
    assert capsys.readouterr() == ("", "reading a.txt\nwarning: b.txt is empty\n")


def test_durations_have_suitable_units() -> None:
    shown = [runtime.format_duration(seconds) for seconds in (0.05, 119.0, 120.0, 9_000.0, 5e5)]
    assert shown == ["50 ms", "119.0 s", "2.0 minutes", "2.5 hours", "5.8 days"]


# Errors


def test_errors_can_be_pickled() -> None:
    extra = errors.MissingExtraError("reading .parquet files", "parquet")
    assert "reading .parquet" in str(extra) and "pip install 'groundup[parquet]'" in str(extra)
    for error in (errors.DataError("damaged"), extra):
        back = pickle.loads(pickle.dumps(error))
        assert (type(back), str(back)) == (type(error), str(error))


def test_suggestions_tolerate_typos_case_and_underscores() -> None:
    names = ["vocab-size", "out"]
    for typed in ("vocabsize", "Vocab_Size"):
        assert errors.did_you_mean(typed, names) == "did you mean vocab-size?"
    assert errors.nearest_name("zzz", names) is None
    assert errors.did_you_mean("zzz", names) == "choose from vocab-size, out"
    assert errors.did_you_mean("zzz", []) == "there are none"
