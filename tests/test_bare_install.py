"""Without extras, groundup encodes, trains, generates and serves."""

import contextlib
import json
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


def start(missing: list[str], *commands: str) -> subprocess.Popen[str]:
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
    with start(missing, *COMMANDS) as process:
        _, err = process.communicate()
    assert process.returncode == 0, err
    with start(missing, "serve bare --port 0") as server:
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
