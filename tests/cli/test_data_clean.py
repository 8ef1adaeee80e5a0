"""The command that cleans: what it prints, and what it leaves."""

import gzip
from pathlib import Path

import pytest

from groundup.cli.main import main

STORY = "The old fox walked down to the river at night and saw the moon in the water there. "


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    other = "A quiet hen kept her nine warm eggs under a pile of yellow straw until spring came."
    (tmp_path / "a.txt").write_text(
        f"{STORY}<|endoftext|>{other}<|endoftext|>x<|endoftext|>{STORY}"
    )
    return tmp_path


def test_the_table_counts_and_shows_an_example(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "clean", "a.txt", "--validation", "a.txt"]) == 0
    shown = capsys.readouterr().out
    lines = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if line.strip()}
    assert lines["kept"][0] == "2" and lines["short"][:1] != ["0"]
    assert "a.txt document 4, as a.txt document 1: 'The old fox" in shown
    assert "3 of 4 documents stand in what is kept" in shown
    assert (files / "clean.jsonl").read_text().count("\n") == 2
    assert main(["data", "clean", "a.txt"]) == 2
    assert "clean.jsonl exists; name another file" in capsys.readouterr().err


def test_validation_text_is_named_as_the_input_is(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = files / "held"
    folder.mkdir()
    (folder / "a.md").write_text(STORY)
    (folder / "b.txt.gz").write_bytes(gzip.compress(STORY[::-1].encode()))
    for named in ("held", "held/*"):
        assert main(["data", "clean", "a.txt", "--dry-run", "--validation", named]) == 0
        assert "1 of 2 documents stand in what is kept" in capsys.readouterr().out


def test_a_dry_run_leaves_nothing(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "clean", "a.txt", "--dry-run", "--min-characters", "0"]) == 0
    assert "counted, nothing written" in capsys.readouterr().out
    assert sorted(path.name for path in files.iterdir()) == ["a.txt"]


def test_no_input_is_one_sentence(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "clean"]) == 2
    assert main(["data", "clean", "gone"]) == 2
    shown = capsys.readouterr().err
    assert "needs FILES" in shown and "gone does not exist" in shown
