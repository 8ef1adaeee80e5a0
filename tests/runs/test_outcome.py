"""outcome.json: what is written is read again, and folders from before it existed still tell."""

import json
from pathlib import Path

import pytest

from groundup.runs import RunFolder
from groundup.runs.folder import is_claimed
from groundup.runs.outcome import Outcome, outcome_of_log, parse_outcome

STOPPED = Outcome("stopped", 4, "SIGINT", {"wall_seconds": 1.5, "tokens": 256})


def test_an_outcome_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.read_outcome() is None
    folder.log_file.write_text("2026-01-02 03:04:05,678 ERROR OSError: no disk\n")
    assert folder.read_outcome() == Outcome("failed", reason="OSError: no disk")
    STOPPED.write(folder.outcome_file)
    assert json.loads(folder.outcome_file.read_bytes())["cost"] == STOPPED.cost
    assert folder.read_outcome() == STOPPED


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"state": "lost"}', '{"state": ["failed"]}'])
def test_what_is_no_outcome_is_none(text: str) -> None:
    assert parse_outcome(text.encode()) is None


def test_odd_values_of_an_outcome_are_left_out() -> None:
    text = b'{"state": "failed", "step": "9", "reason": 7, "cost": {"tokens": -1, "x": "y"}}'
    assert parse_outcome(text) == Outcome("failed")


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("ERROR GroundupError: 5 steps in a row had no finite loss and gradients", "diverged"),
        ("ERROR OSError: no disk", "failed"),
        ("INFO stopped after step 3 of 100 and saved in runs/one", "stopped"),
        ("INFO step 3/100  loss 2.0", None),
    ],
)
def test_the_log_of_an_older_run_tells_its_outcome(line: str, state: str | None) -> None:
    outcome = outcome_of_log(f"2026-01-02 03:04:05,678 {line}\n".encode())
    assert (None if outcome is None else outcome.state) == state


def test_an_error_is_the_outcome_of_a_run_and_a_refusal_is_none(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with pytest.raises(ValueError, match="first"), folder.recording() as record:
        record.outcome = lambda: Outcome("diverged", 7)
        raise ValueError("first\nsecond")
    expected = Outcome("diverged", 7, "ValueError: first")
    assert folder.read_outcome() == expected and "second" in folder.log_file.read_text()
    with pytest.raises(ValueError, match="other"), folder.recording() as record:
        record.takes_errors = False
        raise ValueError("other")
    assert folder.read_outcome() == expected and "other" not in folder.log_file.read_text()


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the kernel lists no locks here")
def test_a_folder_is_claimed_while_a_trainer_holds_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert is_claimed(folder.path) is None
    with folder.claim(resume=False):
        assert is_claimed(folder.path)
    assert is_claimed(folder.path) is False


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the kernel lists no locks here")
def test_a_lock_of_the_same_inode_on_another_device_claims_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path)
    listed = tmp_path / "locks"
    with folder.claim(resume=False):
        inode = tmp_path.stat().st_ino
        lines = Path("/proc/locks").read_text().splitlines()
        (own,) = (line for line in lines if "FLOCK" in line and f":{inode} " in line)
    device = own.split()[5].rpartition(":")[0]
    monkeypatch.setattr("groundup.runs.folder._LIST_OF_LOCKS", listed)
    for text, is_held in ((own, True), (own.replace(f" {device}:", " aa:bb:"), False)):
        listed.write_text(text + "\n")
        assert is_claimed(tmp_path) is is_held
