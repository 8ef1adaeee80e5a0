"""Every command of the README, the quickstart and the guides is run, in this order, at small sizes.

A block marked `sh` is a promise that its lines can be typed. Only sizes change: `SMALL` says to
what. `LEFT_OUT` says which commands another test runs.
"""

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from groundup.cli.main import main

REPOSITORY = Path(__file__).resolve().parent.parent
GUIDES = "training tuning evaluation generation export planning distributed experiments reports"
PAGES = ["README.md", "docs/quickstart.md", *(f"docs/guides/{name}.md" for name in GUIDES.split())]

LEFT_OUT = {
    "serve": "tests/serving starts servers",
    "verify-resume": "tests/training proves a resume",
    "new": "tests/cli trains on folders of its own",
}
SMALL = {
    "--megabytes": "0.3",
    "--vocab-size": "400",
    "--num-steps": "8",
    "--max-tokens": "8",
    "--model.vocab-size": "400",
    "--model.context-length": "16",
    "--model.d-model": "32",
    "--model.num-heads": "2",
    "--budgets": "1e9 3e9",
    "--widths": "32 48 64",
}
# Its clock begins with the process: tests/training measures it in processes of its own.
LEFT_OUT_FLAG = "--minutes"
# Flags that a command leaves at defaults too large for a test.
ADDED: dict[str, dict[str, str]] = {
    "train": {"--device": "cpu", "--batch-size": "2"},
    "tune": {"--device": "cpu", "--num-steps": "8", "--model.context-length": "200"},
    "generate": {"--max-tokens": "8"},
}
# Of a run that would choose its own for ten minutes.
SIZES = {"--model.context-length": "16", "--model.d-model": "32", "--model.num-layers": "1"}
# Many runs each: the plan of them is made, the runs themselves are tests/experiments' affair.
DRY = {"ablate", "scaling"}
PROBED = "--model.d-model 32 --model.num-heads 2 --model.context-length 16".split()


def commands(page: str) -> list[list[str]]:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [line[1:] for line in words if line and line[0] == "groundup"]


def small(words: list[str]) -> list[str]:
    if words[0] == "plan":
        return [*words, *PROBED] if "--probe" in words else words
    kept: list[str] = []
    values = ""
    for word in words:
        if word.startswith("--"):
            values = SMALL.get(word, "")
            kept += [word, *values.split()]
        elif not values:
            kept.append(word)
    added = ADDED.get(words[0], {})
    if words[0] == "train" and not {"--config", "--resume", "--from"} & set(words):
        added = added | SIZES
    for flag, value in added.items():
        if flag not in kept:
            kept += [flag, value]
    return [*kept, "--dry-run"] if words[0] in DRY and "--dry-run" not in kept else kept


def make_small_configs(folder: Path) -> None:
    """The configs of the repository, with sizes, data and devices that a test has."""
    for source in sorted((REPOSITORY / "configs").rglob("*.yaml")):
        settings: dict[str, Any] = yaml.safe_load(source.read_text(encoding="utf-8"))
        if source.parent.name == "train":
            settings |= {"num_steps": 8, "batch_size": 2, "device": "cpu", "precision": "float32"}
            sizes = {"vocab_size": 400, "context_length": 16, "d_model": 32}
            settings["model"] = sizes | {"num_layers": 1, "num_heads": 2}
            settings["data"] = {"shards": "shards", "tokenizer": "tokenizer.json"}
            settings["schedule"] = {"warmup_steps": 1}
            settings["evaluation"] = {"every_steps": 2, "num_windows": 2}
            settings["samples"] = {"every_steps": 0}
            settings.pop("runs_folder", None)
        else:
            settings |= {"seeds": [0], "variants": {}, "tokens": 64}
            settings["grid"] = {"optimizer.learning_rate": [1e-3]}
        target = folder / source.relative_to(REPOSITORY)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(yaml.safe_dump(settings), encoding="utf-8")


@pytest.mark.usefixtures("steady")
def test_documented_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "src"))
    monkeypatch.chdir(tmp_path)
    make_small_configs(tmp_path)
    (tmp_path / "prompts.txt").write_text("Once\nThe cat\n")
    (tmp_path / "corpora").mkdir()
    failures: list[str] = []

    def run(page: str, words: list[str]) -> None:
        capsys.readouterr()
        if main(words) != 0:
            error = capsys.readouterr().err.strip()
            failures.append(f"{page}: groundup {shlex.join(words)}\n  {error}")

    for name in ("stories", "web"):
        path = f"corpora/{name}.txt"
        run("given", ["data", "sample", "--megabytes", "0.1", "--seed", "3", "--out", path])
    done: set[str] = set()
    interrupted = ["train", "--config", "configs/train/tinystories.yaml", "--name", "tinystories"]
    for page in PAGES:
        for words in commands(page):
            text = shlex.join(small(words))
            is_left_out = words[0] in LEFT_OUT
            if text in done or is_left_out or ("train" in words and LEFT_OUT_FLAG in words):
                continue
            done.add(text)
            if words[:2] == ["train", "--name"] and "--resume" not in words:
                shutil.rmtree(Path("runs", words[2]), ignore_errors=True)
            run(page, small(words))
            if words[:3] == ["train", "--name", "first"] and not Path("runs/second").exists():
                run("given", [*small(words)[:2], "second", *small(words)[3:]])
                run("given", small(interrupted))
    assert not failures, "\n".join(failures)
