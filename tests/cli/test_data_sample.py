"""`groundup data sample` on the command line."""

from pathlib import Path
from typing import Any

import pytest

from groundup.cli.main import main
from groundup.data.samples import write_stories


def test_the_command_writes_the_corpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "stories.txt"
    assert main(["data", "sample", "--megabytes", "0.2", "--seed", "4", "--out", str(out)]) == 0
    stories = list(write_stories(200_000, seed=4))
    assert out.read_text() == "".join(f"{story}\n<|endoftext|>\n" for story in stories)
    said = capsys.readouterr().out
    assert said.startswith(f"wrote {out}: {len(stories):,} stories, 20")


@pytest.mark.parametrize("megabytes", ["0", "-3", "nan", "inf", "many"])
def test_an_impossible_size_is_one_line(megabytes: str, tmp_path: Path, shell: Any) -> None:
    out = tmp_path / "stories.txt"
    assert "--megabytes" in shell.fails("data", "sample", "--megabytes", megabytes, "--out", out)
    assert not out.exists()


def test_a_folder_is_no_file_to_write(tmp_path: Path, shell: Any) -> None:
    error = shell.fails("data", "sample", "--megabytes", "1", "--out", tmp_path)
    assert "is a folder" in error


def test_a_full_disk_is_one_line(shell: Any) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    error = shell.fails("data", "sample", "--megabytes", "0.1", "--out", "/dev/full")
    assert "no space left" in error.lower()


def test_the_command_writes_dialogues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    said = shell("data", "sample", "--kind", "dialogues", "--megabytes", "0.01")
    num_lines = len((tmp_path / "dialogues.jsonl").read_text().splitlines())
    assert said.startswith(f"wrote dialogues.jsonl: {num_lines} dialogues, 10.")
