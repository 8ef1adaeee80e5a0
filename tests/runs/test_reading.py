"""What is read back from a run's files: metrics as columns, and the last line of a log."""

import math
from pathlib import Path
from typing import Any

import pytest

from groundup.model.config import ModelConfig
from groundup.runs.config import model_of
from groundup.runs.metrics import Metrics, as_float, parse_line
from groundup.runs.metrics_file import MetricsReader, read_metrics


def columns_of(*records: dict[str, Any]) -> Metrics:
    columns = Metrics()
    for record in records:
        columns.add(record)
    return columns


def test_every_column_has_a_number_for_every_line() -> None:
    columns = columns_of({"step": 5, "loss": 2.0}, {"step": 10, "text": "x"}, {"mfu": 0.5})
    assert columns.num_lines == 3 and set(columns.columns) == {"step", "loss", "mfu"}
    assert all(len(column) == 3 for column in columns.columns.values())
    assert math.isnan(columns.column("mfu")[0]) and list(columns.column("text")) == []
    assert columns.last("loss") == 2.0 and columns.last("text") is None
    # A line that does not say its step is counted.
    assert [columns.step_of(index) for index in range(3)] == [5, 10, 3]


def test_the_lowest_of_equals_is_the_first() -> None:
    values = [3.0, None, 1.0, 1.0, math.inf]
    columns = columns_of(*({"step": 10 * n, "loss": loss} for n, loss in enumerate(values)))
    assert columns.lowest("loss") == (1.0, 20) and columns.lowest("other") is None
    assert columns.at_lowest("step", by="loss") == 20 and columns.at_lowest("other", "loss") is None


def test_numbers_of_a_run_that_diverged_count_as_none() -> None:
    columns = columns_of({"loss": 99}, {"loss": 1e30}, {"loss": -1e31})
    assert columns.last("loss") == 99 and columns.ends_without_loss


@pytest.mark.parametrize("value", [None, True, "1", [1], math.nan, math.inf, 10**400])
def test_what_is_not_a_number_is_nan(value: object) -> None:
    assert math.isnan(as_float(value))


@pytest.mark.parametrize("line", [b"", b'{"step": 1', b"[1]", b"\xff", b"[" * 100_000])
def test_a_line_that_is_no_object_is_none(line: bytes) -> None:
    assert parse_line(line) is None


def test_the_model_of_settings_is_known_where_they_fit() -> None:
    assert model_of({"model.d_model": 64, "seed": 1}) == ModelConfig(d_model=64)
    assert model_of({"seed": 1}) is None and model_of({"model.d_model": "wide"}) is None


def test_a_line_of_many_megabytes_hides_nothing_after_it(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    long = b'{"step": 2, "x": "' + b"x" * (17 << 20) + b'"}\n'
    file.write_bytes(b'{"step": 1}\n' + long + b'{"step": 3}\n')
    metrics = read_metrics(file)
    assert (metrics.num_lines, metrics.last_step) == (2, 3) and metrics.num_damaged


def test_the_follower_and_the_whole_reading_agree(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    reader = MetricsReader(file)
    lines = [b'{"step": 1, "loss": 3.0}\n', b"\n", b"torn in the middle\n", b'{"step": 2, "loss"']
    for end, num_lines in ((b"", 1), (b": 2.0}", 1), (b": 2.0}\n", 2)):
        file.write_bytes(b"".join(lines) + end)
        with reader.reading() as followed:
            assert (followed.num_lines, followed.num_damaged) == (num_lines, 1)
        read = read_metrics(file)
        # Whoever reads once takes a last line that only lacks its end.
        assert read.num_lines == 1 + bool(end) and read.last_step == read.num_lines
        assert any("incomplete" in note for note in read.notes) is not bool(end)
        assert any("damaged" in note for note in read.notes)


def test_a_link_is_followed_only_for_who_names_it(tmp_path: Path) -> None:
    (tmp_path / "real.jsonl").write_text('{"step": 1}\n')
    link = tmp_path / "metrics.jsonl"
    link.symlink_to("real.jsonl")
    assert read_metrics(link).num_lines == 1
    with MetricsReader(link).reading() as metrics:
        assert metrics.num_lines == 0
