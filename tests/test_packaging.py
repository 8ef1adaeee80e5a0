"""Installation: a source archive that builds, a wheel that runs without extras, and one-line errors
if neither can be built."""

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from groundup import _native

COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
SENTENCE = "Once upon a time"


@pytest.fixture
def checkout(tmp_path: Path, repository: Path) -> Path:
    """Return a copy of the repository without build outputs."""
    built = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
    for name in ("native", "src"):
        shutil.copytree(repository / name, tmp_path / "checkout" / name, ignore=built)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "constraints.txt", "README.md"):
        shutil.copy(repository / name, tmp_path / "checkout")
    shutil.copy(repository / "LICENSE", tmp_path / "checkout")
    return tmp_path / "checkout"


def compile_with(folder: Path, *lines: str) -> dict[str, str]:
    """Return an environment whose compiler is a shell script."""
    script = folder / "compiler"
    script.write_text("\n".join(("#!/bin/sh", *lines)) + "\n", encoding="utf-8")
    script.chmod(0o755)
    return clean_environment(CC=str(script), CXX=str(script))


def clean_environment(**variables: str) -> dict[str, str]:
    return {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"} | variables


def run(*words: str | Path, cwd: Path, env: dict[str, str]) -> str:
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_sdist_builds_a_working_wheel(checkout: Path, tmp_path: Path) -> None:
    # Compiling takes most of a minute and is tested in tests/native: files are only preprocessed,
    # which needs all headers, and the existing core is used.
    quick = compile_with(
        tmp_path,
        'for word in "$@"; do test "$last" = -o && out=$word; last=$word; done',
        'case " $* " in',
        f'*" -c "*) exec {COMPILER} "$@" -E ;;',
        f'*) cp {shlex.quote(_native.__file__)} "$out" ;;',
        "esac",
    )
    run(sys.executable, "-m", "build", "--no-isolation", cwd=checkout, env=quick)
    (archive,) = (checkout / "dist").glob("*.tar.gz")
    (wheel,) = (checkout / "dist").glob("*.whl")
    with tarfile.open(archive) as opened:
        members = {Path(*Path(name).parts[1:]).as_posix() for name in opened.getnames()}
    wanted = [path for path in (checkout / "native").iterdir() if path.is_file()]
    assert {f"native/{path.name}" for path in wanted} <= members
    assert "-cp311-abi3-" in wheel.name
    check_files(wheel, checkout / "src")

    run(sys.executable, "-m", "venv", "--without-pip", "elsewhere", cwd=tmp_path, env=quick)
    python = tmp_path / "elsewhere" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=tmp_path, env=quick)
    # With all dependencies but not groundup itself: .pth files of a linked folder are ignored.
    (site,) = (tmp_path / "elsewhere").glob("lib/python*/site-packages")
    folders = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (site / "here.pth").write_text("\n".join(folders) + "\n", encoding="utf-8")
    bare = clean_environment()
    program = python.parent / "groundup"
    assert run(program, "--version", cwd=tmp_path, env=bare).startswith("groundup ")
    script = (
        "import groundup; from groundup import Tokenizer\n"
        f"ids = Tokenizer({{i: bytes([i]) for i in range(256)}}, []).encode({SENTENCE!r})\n"
        "print(groundup.__file__, *ids, sep='\\n')"
    )
    file, *ids = run(python, "-c", script, cwd=tmp_path, env=bare).splitlines()
    assert Path(file).is_relative_to(tmp_path / "elsewhere")
    assert bytes(map(int, ids)).decode() == SENTENCE


def check_files(wheel: Path, source: Path) -> None:
    """Check that it contains exactly the files of the package, including the core."""
    with zipfile.ZipFile(wheel) as opened:
        names = {name for name in opened.namelist() if ".dist-info/" not in name}
    package = {
        path.relative_to(source).as_posix()
        for path in (source / "groundup").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"
    }
    assert {"groundup/py.typed", "groundup/serving/static/runs.html"} <= package
    assert names == package | {"groundup/_native.abi3.so"}


REJECT_STANDARD = 'for word in "$@"; do test "$word" = -std=c++17 && exit 1; done'
REJECT_HEADER = 'for word in "$@"; do test -f "$word" && grep -q Python.h "$word" && exit 1; done'
VERSION = sysconfig.get_python_version()


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (["exit 127"], "error: groundup needs a C++17 compiler, and {compiler} does not work: "),
        (
            [REJECT_STANDARD, f'exec {COMPILER} "$@"'],
            "error: groundup needs a C++17 compiler, and {compiler} is not one: install gcc ",
        ),
        (
            [REJECT_HEADER, f'exec {COMPILER} "$@"'],
            f"error: groundup needs the headers of Python {VERSION}, and Python.h is missing: ",
        ),
    ],
    ids=["no compiler", "an old compiler", "no headers"],
)
def test_missing_build_requirements_are_reported(
    checkout: Path, tmp_path: Path, lines: list[str], sentence: str
) -> None:
    environment = compile_with(tmp_path, *lines)
    words = ["setup.py", "build_ext"]
    if lines == ["exit 127"]:
        # pip shows the other errors in the same way.
        pip = "-m pip --disable-pip-version-check install --no-build-isolation --no-deps"
        words = [*pip.split(), "--no-index", "--target", "x", "."]
    done = subprocess.run(
        [sys.executable, *words], cwd=checkout, env=environment, capture_output=True, text=True
    )
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert sentence.format(compiler=tmp_path / "compiler") in done.stderr


@pytest.mark.parametrize("python", ["false", "/nowhere/python3"])
def test_an_old_python_is_reported(tmp_path: Path, repository: Path, python: str) -> None:
    make = ("make", "-f", str(repository / "Makefile"), f"PYTHON={python}", ".venv/bin/python")
    done = subprocess.run(make, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and not (tmp_path / ".venv").exists()
    assert f"error: groundup needs Python 3.11 or later, and {python} is" in done.stderr


# Names on the first line cannot be imported; the other lines are commands, run in order.
RUNNER = """
import json, sys

missing, *commands = map(json.loads, sys.stdin.read().splitlines())

class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        is_hidden = name.partition(".")[0] in missing
        return None if is_hidden else self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Hiding, sys.meta_path)
from groundup.cli.main import main

for words in commands:
    status = main(words)
    if status:
        sys.exit(f"{words} ended with {status}")
# Two seconds that only ranks which divide the weights should wait.
assert "torch.distributed.fsdp" not in sys.modules
"""
MODEL = "--model.vocab-size 300 --model.context-length 16 --model.d-model 16 --model.num-layers 1"
COMMANDS = (
    "data sample --megabytes 0.05 --out stories.txt",
    "tokenizer train stories.txt --vocab-size 300 --out tokenizer.json",
    "tokenizer encode stories.txt --tokenizer tokenizer.json --out ids.npy",
    "data prepare stories.txt --tokenizer tokenizer.json --out shards",
    f"train --name bare --num-steps 2 {MODEL} --model.num-heads 2",
    "generate bare --prompt Once --max-tokens 4",
    "report runs/bare --out report.html",
    "export bare --to huggingface exported",
)


def extras_import_names(repository: Path) -> list[str]:
    """Return the top-level modules of packages that only extras need."""
    project = tomllib.loads((repository / "pyproject.toml").read_text("utf-8"))["project"]

    def reached(pending: list[str]) -> set[str]:
        found: set[str] = set()
        while pending:
            requirement = Requirement(pending.pop())
            name, marker = canonicalize_name(requirement.name), requirement.marker
            if name not in found and (marker is None or marker.evaluate({"extra": ""})):
                found.add(name)
                with contextlib.suppress(PackageNotFoundError):
                    pending += requires(name) or []
        return found

    extras = [one for some in project["optional-dependencies"].values() for one in some]
    absent = reached(extras) - reached([*project["dependencies"]]) - {"groundup"}
    packages = packages_distributions().items()
    return [name for name, owners in packages if absent >= {*map(canonicalize_name, owners)}]


def start_bare(missing: list[str], *commands: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", RUNNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write("\n".join(map(json.dumps, (missing, *(one.split() for one in commands)))))
    process.stdin.close()
    process.stdin = None
    return process


def test_bare_install_encodes_trains_generates_and_serves(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    missing = extras_import_names(repository)
    assert {"pytest", "optuna", "pyarrow", "gguf"} <= set(missing)
    assert not {"numpy", "torch", "starlette", "uvicorn", "plotly"} & set(missing)
    with start_bare(missing, *COMMANDS) as process:
        _, err = process.communicate()
    assert process.returncode == 0, err
    with start_bare(missing, "serve bare --port 0") as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[-1]
            assert json.load(urlopen(f"{url}/health"))["status"] == "ok"
            asked = json.dumps({"model": "bare", "prompt": "Once", "max_tokens": 4}).encode()
            headers = {"Content-Type": "application/json"}
            answer = json.load(urlopen(Request(f"{url}/v1/completions", asked, headers)))
            assert answer["usage"]["completion_tokens"] <= 4
            assert urlopen(f"{url}/runs").status == 200
        finally:
            server.terminate()
            server.communicate()
