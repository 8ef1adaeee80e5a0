"""Reading a run's files: metrics, outcomes, locks and checkpoints."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from groundup.checkpoint import CheckpointFolder
from groundup.errors import ConfigError, DataError
from groundup.model.config import ModelConfig
from groundup.runs import RunFolder
from groundup.runs.config import model_of
from groundup.runs.folder import list_checkpoints
from groundup.runs.metrics import Metrics, as_float, parse_line
from groundup.runs.metrics_file import MetricsReader, read_metrics
from groundup.runs.outcome import Outcome


def columns_of(*records: dict[str, Any]) -> Metrics:
    columns = Metrics()
    for record in records:
        columns.add(record)
    return columns


def test_columns_have_one_number_per_line() -> None:
    columns = columns_of({"step": 5, "loss": 2.0}, {"step": 10, "text": "x"}, {"mfu": 0.5})
    assert columns.num_lines == 3 and set(columns.columns) == {"step", "loss", "mfu"}
    assert all(len(column) == 3 for column in columns.columns.values())
    assert math.isnan(columns.column("mfu")[0]) and list(columns.column("text")) == []
    assert columns.last("loss") == 2.0 and columns.last("text") is None
    # A line without a step counts as one step.
    assert [columns.step_of(index) for index in range(3)] == [5, 10, 3]


def test_lowest_returns_the_first_of_ties() -> None:
    values = [3.0, None, 1.0, 1.0, math.inf]
    columns = columns_of(*({"step": 10 * n, "loss": loss} for n, loss in enumerate(values)))
    assert columns.lowest("loss") == (1.0, 20) and columns.lowest("other") is None
    assert columns.at_lowest("step", by="loss") == 20 and columns.at_lowest("other", "loss") is None


def test_numbers_of_diverged_runs_are_ignored() -> None:
    columns = columns_of({"loss": 99}, {"loss": 1e30}, {"loss": -1e31})
    assert columns.last("loss") == 99 and columns.ends_without_loss


def test_other_values_are_nan_and_other_lines_none() -> None:
    assert all(map(math.isnan, map(as_float, (None, True, "1", [1], math.nan, math.inf, 10**400))))
    for line in (b"", b'{"step": 1', b"[1]", b"\xff", b"[" * 100_000):
        assert parse_line(line) is None


def test_model_of_returns_none_for_invalid_settings() -> None:
    assert model_of({"model.d_model": 64, "seed": 1}) == ModelConfig(d_model=64)
    assert model_of({"seed": 1}) is None and model_of({"model.d_model": "wide"}) is None


def test_lines_after_a_huge_line_are_read(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    long = b'{"step": 2, "x": "' + b"x" * (17 << 20) + b'"}\n'
    file.write_bytes(b'{"step": 1}\n' + long + b'{"step": 3}\n')
    metrics = read_metrics(file)
    assert (metrics.num_lines, metrics.last_step) == (2, 3) and metrics.num_damaged


def test_following_matches_reading_the_whole_file(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    reader = MetricsReader(file)
    lines = [b'{"step": 1, "loss": 3.0}\n', b"\n", b"torn in the middle\n", b'{"step": 2, "loss"']
    for end, num_lines in ((b"", 1), (b": 2.0}", 1), (b": 2.0}\n", 2)):
        file.write_bytes(b"".join(lines) + end)
        with reader.reading() as followed:
            assert (followed.num_lines, followed.num_damaged) == (num_lines, 1)
        read = read_metrics(file)
        # Reading once includes a complete last line without a newline.
        assert read.num_lines == 1 + bool(end) and read.last_step == read.num_lines
        assert any("incomplete" in note for note in read.notes) is not bool(end)
        assert any("damaged" in note for note in read.notes)


def test_links_are_followed_only_if_named(tmp_path: Path) -> None:
    (tmp_path / "real.jsonl").write_text('{"step": 1}\n')
    link = tmp_path / "metrics.jsonl"
    link.symlink_to("real.jsonl")
    assert read_metrics(link).num_lines == 1
    with MetricsReader(link).reading() as metrics:
        assert metrics.num_lines == 0


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"state": "lost"}', '{"state": "failed", "cost": {"tokens": "x"}}']
)
def test_invalid_outcomes_are_none(tmp_path: Path, text: str) -> None:
    folder = RunFolder(tmp_path)
    folder.outcome_file.write_text(text)
    assert folder.read_outcome() is None


def test_errors_are_recorded_but_refusals_are_not(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with pytest.raises(ValueError, match="first"), folder.recording() as record:
        record.outcome = lambda: Outcome("diverged", 7)
        raise ValueError("first\nsecond\x1b[2J")
    expected = Outcome("diverged", 7, "ValueError: first")
    assert folder.read_outcome() == expected and "second\\x1b" in folder.log_file.read_text()
    with pytest.raises(ValueError, match="other"), folder.recording() as record:
        record.records_errors = False
        raise ValueError("other")
    assert folder.read_outcome() == expected and "other" not in folder.log_file.read_text()


def test_a_folder_is_claimed_while_a_trainer_has_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert folder.is_claimed() is None
    with folder.claim(resume=False):
        assert folder.is_claimed()
        with pytest.raises(ConfigError, match="another process"), folder.claim(resume=False):
            pass
    assert folder.is_claimed() is False
    os.mkfifo(folder.log_file)
    with pytest.raises(DataError, match="log"), folder.claim(resume=False):
        pass


@pytest.mark.parametrize("state", ["finished", "stopped", "diverged", "failed"])
def test_the_state_is_the_outcome_unless_the_run_is_claimed(tmp_path: Path, state: Any) -> None:
    folder = RunFolder(tmp_path)
    Outcome(state, 4, "why").write(folder.outcome_file)
    assert folder.find_state(4, 10) == (state, "why")
    with folder.claim(resume=False):
        assert folder.find_state(10, 10) == ("running", None)


def test_runs_without_an_outcome_are_finished_or_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path)
    for is_held, state in ((False, "killed"), (None, "unknown")):
        monkeypatch.setattr(RunFolder, "is_claimed", lambda _, held=is_held: held)
        assert folder.find_state(10, 10)[0] == "finished"
        for step, num_steps in ((9, 10), (None, 10), (9, None)):
            assert folder.find_state(step, num_steps)[0] == state


def test_checkpoints_are_listed(tmp_path: Path) -> None:
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
