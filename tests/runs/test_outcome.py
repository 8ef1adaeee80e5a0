"""How a run ended and stands: outcomes written and read, locks, checkpoints."""

import json
from pathlib import Path
from typing import Any

import pytest

from groundup.checkpoint import CheckpointFolder
from groundup.errors import ConfigError
from groundup.runs import RunFolder
from groundup.runs.folder import list_checkpoints
from groundup.runs.outcome import Outcome

STOPPED = Outcome("stopped", 4, "SIGINT", {"wall_seconds": 1.5, "tokens": 256})


def test_an_outcome_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.read_outcome() is None
    STOPPED.write(folder.outcome_file)
    assert json.loads(folder.outcome_file.read_bytes())["cost"] == STOPPED.cost
    assert folder.read_outcome() == STOPPED


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"state": "lost"}', '{"state": "failed", "cost": {"tokens": "x"}}']
)
def test_what_is_no_outcome_is_none(tmp_path: Path, text: str) -> None:
    folder = RunFolder(tmp_path)
    folder.outcome_file.write_text(text)
    assert folder.read_outcome() is None


def test_an_error_is_the_outcome_of_a_run_and_a_refusal_is_none(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with pytest.raises(ValueError, match="first"), folder.recording() as record:
        record.outcome = lambda: Outcome("diverged", 7)
        raise ValueError("first\nsecond")
    expected = Outcome("diverged", 7, "ValueError: first")
    assert folder.read_outcome() == expected and "second" in folder.log_file.read_text()
    with pytest.raises(ValueError, match="other"), folder.recording() as record:
        record.records_errors = False
        raise ValueError("other")
    assert folder.read_outcome() == expected and "other" not in folder.log_file.read_text()


def test_a_folder_is_claimed_while_a_trainer_holds_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert folder.is_claimed() is None
    with folder.claim(resume=False):
        assert folder.is_claimed()
        with pytest.raises(ConfigError, match="another process"), folder.claim(resume=False):
            pass
    assert folder.is_claimed() is False


@pytest.mark.parametrize("state", ["finished", "stopped", "diverged", "failed"])
def test_a_run_stands_as_its_outcome_says_unless_a_process_holds_it(
    tmp_path: Path, state: Any
) -> None:
    folder = RunFolder(tmp_path)
    Outcome(state, 4, "why").write(folder.outcome_file)
    assert folder.find_state(4, 10) == (state, "why")
    with folder.claim(resume=False):
        assert folder.find_state(10, 10) == ("running", None)


def test_a_run_without_an_outcome_is_finished_or_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path)
    for is_held, state in ((False, "killed"), (None, "unknown")):
        monkeypatch.setattr(RunFolder, "is_claimed", lambda _, held=is_held: held)
        assert folder.find_state(10, 10)[0] == "finished"
        for step, num_steps in ((9, 10), (None, 10), (9, None)):
            assert folder.find_state(step, num_steps)[0] == state


def test_the_checkpoints_of_a_run_are_listed_as_they_were_saved(tmp_path: Path) -> None:
    assert list_checkpoints(tmp_path / "none") == []
    checkpoints = CheckpointFolder(tmp_path, keep_last=None)
    for step, metric in ((1, 2.0), (2, 1.0), (1_000_000, None)):
        checkpoints.save(step, {}, {}, {}, metric)
    (tmp_path / "step_000002" / "note").write_bytes(b"1234")
    (tmp_path / "other").mkdir()
    large = json.loads((tmp_path / "step_000002" / "state.json").read_text())
    large["state"] = "x" * (2 << 20)
    (tmp_path / "step_000002" / "state.json").write_text(json.dumps(large))
    (tmp_path / "step_000001" / "state.json").write_text("[")
    newest, best, damaged = list_checkpoints(tmp_path)
    assert [entry["step"] for entry in (newest, best, damaged)] == [1_000_000, 2, 1]
    assert [entry["validation_loss"] for entry in (newest, best, damaged)] == [None, 1.0, None]
    assert best["is_best"] and not newest["is_best"] and not damaged["is_best"]
    assert best["num_bytes"] > 4 and best["written"] > 1e9
