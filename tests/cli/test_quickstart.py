"""`groundup quickstart`: every step is taken, told and, the second time, kept."""

import re
import shlex
from pathlib import Path

import pytest

from groundup.cli.main import main
from groundup.cli.verbs import VERBS
from groundup.data.shards import open_shards
from groundup.tokenizer import Tokenizer

SMALL = ["--megabytes", "0.05", "--vocab-size", "400"]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["quickstart", *words]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_it_goes_from_nothing_to_shards(capsys: pytest.CaptureFixture[str]) -> None:
    page = run(capsys, *SMALL)
    tokenizer = Tokenizer.load("quickstart/tokenizer.json")
    assert tokenizer.vocab_size == 400
    assert open_shards("quickstart/shards", "train", tokenizer).num_ids > 10_000
    for word in ("stories", "400 tokens", "bytes a token", "MB/s", "sound", "Once"):
        assert word in page


def test_its_commands_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    page = run(capsys, *SMALL)
    commands = [shlex.split(line) for line in re.findall(r"\$ (groundup .*)", page)]
    assert len(commands) == 10
    for words in commands[:6]:
        # The shards are up to date only while the tokenizer is the same: training is exact.
        assert main(words[1:]) == 0, words
    for words in commands[6:-1]:
        assert " ".join(words[1:3]) in VERBS


def test_the_second_run_keeps_every_step(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, *SMALL)
    files = [path for path in Path("quickstart").rglob("*") if path.is_file()]
    before = {path: path.stat().st_mtime_ns for path in files}
    page = run(capsys, *SMALL)
    assert {path: path.stat().st_mtime_ns for path in files} == before
    for words in ("written before", "learned before", "encoded before"):
        assert words in page


def test_other_settings_redo_what_depends_on_them(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, *SMALL)
    page = run(capsys, "--megabytes", "0.05", "--vocab-size", "300")
    assert "written before" in page and "learned before" not in page
    assert open_shards("quickstart/shards").index.vocab_size == 300
    page = run(capsys, *SMALL, "--seed", "1")
    assert "before" not in page.replace("before it", "")


def test_a_cut_corpus_is_written_again(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, *SMALL)
    corpus = Path("quickstart/stories.txt")
    whole = corpus.read_bytes()
    corpus.write_bytes(whole[:100])
    run(capsys, *SMALL)
    assert corpus.read_bytes() == whole


@pytest.mark.parametrize("megabytes", ["0", "-1", "inf", "nan"])
def test_no_text_is_a_mistake(capsys: pytest.CaptureFixture[str], megabytes: str) -> None:
    assert main(["quickstart", f"--megabytes={megabytes}"]) == 2
    assert capsys.readouterr().err.startswith("error: --megabytes")
    assert not Path("quickstart").exists()


def test_a_file_in_the_way_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    Path("quickstart").write_text("")
    assert main(["quickstart"]) == 2
    assert "is a file" in capsys.readouterr().err
