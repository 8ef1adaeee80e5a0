"""The core compiles without warnings with every compiler, and gives equal results on other CPUs.

libc++ is strict about includes, so each header is also compiled separately with it. Other CPUs are
tested with a cross compiler and an emulator. `make check` runs these tests, which take a minute and
only depend on native/.
"""

import platform
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

pytestmark = pytest.mark.check

FindPrograms = Callable[[Iterable[str], str], list[str]]

FLAGS = ["-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread"]
OTHER = {"aarch64": "x86_64", "x86_64": "aarch64"}


def run(*command: str | Path) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def assert_compiles(
    compiler: list[str], repository: Path, sources: Iterable[Path], *output: str | Path
) -> None:
    includes: list[str | Path] = ["-I", repository / "native", "-I", sysconfig.get_path("include")]
    flags = [*FLAGS, "-DPy_LIMITED_API=0x030B0000", *(output or ["-fsyntax-only"])]
    run(*compiler, *flags, *includes, *sorted(sources))


def test_the_core_compiles_without_warnings(repository: Path) -> None:
    for compiler in filter(shutil.which, ["c++", *(f"g++-{number}" for number in range(11, 16))]):
        assert_compiles([compiler], repository, (repository / "native").glob("*.cpp"))


def test_every_file_and_header_compiles_with_libcxx(
    repository: Path, tmp_path: Path, find_programs: FindPrograms
) -> None:
    (clang,) = find_programs(["clang++"], "clang libc++-dev libc++abi-dev")
    probe = tmp_path / "probe.cc"
    probe.write_text("#include <vector>\n")
    command = [clang, "-stdlib=libc++"]
    if subprocess.run([*command, "-fsyntax-only", probe], capture_output=True).returncode != 0:
        pytest.skip("clang has no libc++: install libc++-dev libc++abi-dev")
    sources = list((repository / "native").glob("*.cpp"))
    # The first include of a file is thereby compiled separately.
    lines = (source.read_text().splitlines() for source in sources)
    firsts = {next(line for line in text if line.startswith("#include")) for text in lines}
    for header in (repository / "native").glob("*.h"):
        include = f'#include "{header.name}"'
        if include not in firsts:
            (tmp_path / f"{header.stem}.cpp").write_text(f"{include}\n")
    assert_compiles(command, repository, [*sources, *tmp_path.glob("*.cpp")])


def test_the_core_computes_the_same_on_the_other_architecture(
    repository: Path, tmp_path: Path, find_programs: FindPrograms
) -> None:
    other = OTHER.get(platform.machine())
    if other is None:
        pytest.skip(f"no cross compiler is known on {platform.machine()}")
    triple = f"{other}-linux-gnu"
    compiler, emulator = find_programs(
        [f"{triple}-g++", f"qemu-{other}"], f"g++-{triple.replace('_', '-')} qemu-user"
    )
    sources = [file for file in (repository / "native").glob("*.cpp") if "python" not in file.name]
    check = tmp_path / "self_check"
    files = [*sources, Path(__file__).with_name("self_check.cpp")]
    run(compiler, *FLAGS, "-O1", "-I", repository / "native", *files, "-ldl", "-o", check)
    vectors = {"x86_64": "avx2", "aarch64": "neon"}[other]
    said = run(emulator, "-cpu", "max", "-L", f"/usr/{triple}", check)
    assert f"{vectors}: scanners agree" in said
    assert f"{vectors}: encoder and rows agree" in said
