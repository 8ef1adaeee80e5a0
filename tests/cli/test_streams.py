"""Whatever the shell made of the standard streams and the locale, a verb prints and ends well."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from groundup.tokenizer import Tokenizer

TEXT = "née 日本 🙂"


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    Tokenizer({id: bytes([id]) for id in range(256)}, []).save(file)
    return file


def run_in_shell(words: list[str], ending: str = "", **environment: str) -> tuple[int, bytes, str]:
    command = f"{shlex.join([sys.executable, '-m', 'groundup', *words])} {ending}"
    done = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, env={**os.environ, **environment}
    )
    return done.returncode, done.stdout, done.stderr.decode("utf-8", "replace")


@pytest.mark.parametrize("words", [["--version"], ["plan", "--devices"]])
@pytest.mark.parametrize("ending", [">&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_error(words: list[str], ending: str) -> None:
    assert run_in_shell(words, ending) == (0, b"", "")


def test_an_error_is_told_where_only_stdout_is_closed(tmp_path: Path) -> None:
    status, _, errors = run_in_shell(["tokenizer", "decode", "--ids", "x y", "-h=1"], ">&-")
    assert status == 2 and errors.startswith("error: ") and errors.count("\n") == 1


@pytest.mark.parametrize("verb", ["inspect", "encode", "decode"])
def test_a_locale_without_an_encoding_prints_utf8(tokenizer_file: Path, verb: str) -> None:
    words = {"decode": ["--ids", " ".join(map(str, TEXT.encode()))], "inspect": [TEXT]}
    status, out, errors = run_in_shell(
        ["tokenizer", verb, *words.get(verb, ["--text", TEXT]), "--tokenizer", str(tokenizer_file)],
        PYTHONUTF8="0",
        LC_ALL="C",
    )
    assert status == 0 and errors == ""
    expected = " ".join(map(str, TEXT.encode())) if verb == "encode" else "日"
    assert expected in out.decode("utf-8")


def test_a_path_that_the_locale_cannot_name_is_one_line(
    monkeypatch: pytest.MonkeyPatch, shell: Any
) -> None:
    def fail(arguments: list[str]) -> int:
        "donn\u00e9es".encode("ascii")
        return 0

    monkeypatch.setattr("groundup.cli.main._dispatch", fail)
    assert shell.fails("plan").startswith("no file name of this locale")


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--seed", str(2**70)],
        ["train", "--seed", "9" * 5_000],
        ["train", "--model.num-layers", "1e9"],
        ["train", "--samples.seed", str(2**64)],
        ["generate", "run", "--seed", str(2**70)],
        ["generate", "run", "--num-samples", str(2**70)],
        ["generate", "run", "--num-samples", str(10**10)],
        ["generate", "run", "--seed", str(2**64 - 1), "--num-samples", "2"],
        ["plan", "--batch-size", "9" * 400],
        ["plan", "--mfu", "nan"],
        ["data", "sample", "--megabytes", "1e18"],
        ["tokenizer", "train", __file__, "--vocab-size", str(2**63)],
    ],
)
def test_numbers_beyond_all_bounds_are_one_line(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(shell.fails(*words)) < 500
    assert not list(tmp_path.iterdir())
