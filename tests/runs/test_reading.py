"""What is read back from a run's files: figures as columns, and the last word of a log."""

import logging
import math
from pathlib import Path

import pytest

from groundup.model.config import ModelConfig
from groundup.runs.config import model_of
from groundup.runs.log import last_entry, log_to_file
from groundup.runs.metrics import Metrics, as_float, parse_line


def columns_of(*records: dict[str, object]) -> Metrics:
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
    assert [columns.step_of(place) for place in range(3)] == [5, 10, 3]


def test_the_lowest_of_equals_is_the_first() -> None:
    values = [3.0, None, 1.0, 1.0, math.inf]
    columns = columns_of(*({"step": 10 * n, "loss": loss} for n, loss in enumerate(values)))
    assert columns.lowest("loss") == (1.0, 20) and columns.lowest("other") is None


def test_numbers_of_a_run_that_diverged_count_as_none() -> None:
    columns = columns_of({"loss": 99}, {"loss": 1e30}, {"loss": -1e31})
    assert columns.last("loss") == 99 and columns.ends_without_loss


@pytest.mark.parametrize("value", [None, True, "1", [1], math.nan, math.inf, 10**400])
def test_what_is_no_figure_is_nan(value: object) -> None:
    assert math.isnan(as_float(value))


@pytest.mark.parametrize("line", [b"", b'{"step": 1', b"[1]", b"\xff", b"[" * 100_000])
def test_a_line_that_is_no_object_is_none(line: bytes) -> None:
    assert parse_line(line) is None


def test_the_last_entry_of_a_log_is_what_was_logged_last(tmp_path: Path) -> None:
    file = tmp_path / "log.txt"
    assert last_entry(b"") is None and last_entry(b"no log\n") is None
    with log_to_file(file):
        logging.getLogger("groundup.any").info("first\n2 more lines\n")
    entry = last_entry(file.read_bytes())
    assert entry is not None and (entry.level, entry.text) == ("INFO", "first")
    with log_to_file(file) as add_error:
        add_error("ValueError: so")
    # The beginning of the end may be torn, as a tail of a file is.
    entry = last_entry(file.read_bytes()[3:])
    assert entry is not None and (entry.level, entry.text) == ("ERROR", "ValueError: so")


def test_the_model_of_settings_is_known_where_they_fit() -> None:
    assert model_of({"model.d_model": 64, "seed": 1}) == ModelConfig(d_model=64)
    assert model_of({"seed": 1}) is None and model_of({"model.d_model": "wide"}) is None
