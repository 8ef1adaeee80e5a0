"""`groundup report` as a person types it."""

import json
from pathlib import Path
from typing import Any

import pytest


def test_runs_are_compared_and_their_names_cannot_command_the_terminal(
    tmp_path: Path, shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    record = json.dumps({"step": 1, "tokens": 1, "wall_seconds": 1.0, "loss": 3.0})
    for name, lines in (("slow", f"{record}\n"), ("fast", f'{record}\n{{"step": 2, "lo')):
        Path("runs", name).mkdir(parents=True)
        Path("runs", name, "metrics.jsonl").write_text(lines)
    assert "written: report.html" in shell("report", "slow", "runs/fast", "--title", "Speed")
    assert "<h1>Speed</h1>" in Path("report.html").read_text("utf-8")
    Path("runs/fast").rename("runs/\x1b[2Jfast\nerror: all is lost")
    printed = shell("report", "runs", "--out", "pages/all.html")
    assert "slow" in Path("pages/all.html").read_text("utf-8")
    assert "\x1b" not in printed and "\nerror" not in printed
    assert "the last line of metrics.jsonl is incomplete and was skipped." in printed
