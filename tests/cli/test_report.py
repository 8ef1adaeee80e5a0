"""`groundup report` as a person types it."""

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two runs under `runs`."""
    for name, loss in (("slow", 3.0), ("fast", 2.0)):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        record = {"step": 1, "tokens": 1, "wall_seconds": 1.0, "loss": loss}
        (folder / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_runs_are_found_by_name_and_the_page_says_where_it_is(here: Path, shell: Any) -> None:
    assert "written: report.html" in shell("report", "slow", "runs/fast", "--title", "Speed")
    assert "<h1>Speed</h1>" in (here / "report.html").read_text("utf-8")


def test_a_folder_of_runs_is_all_of_them_and_names_cannot_command_the_terminal(
    here: Path, shell: Any
) -> None:
    with (here / "runs" / "fast" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')
    (here / "runs" / "fast").rename(here / "runs" / "\x1b[2Jfast\nerror: all is lost")
    printed = shell("report", "runs", "--out", "pages/all.html")
    assert "slow" in (here / "pages" / "all.html").read_text("utf-8")
    assert "\x1b" not in printed and "\nerror" not in printed
    assert "the last line of metrics.jsonl is unfinished and was left out." in printed
