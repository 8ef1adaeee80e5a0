"""Losses over a varied setting: which chart is made, and what it says."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from groundup.experiments.report.charts import Line, are_geometric, chart_over
from groundup.experiments.report.setting_chart import setting_chart
from groundup.experiments.results.groups import Group, group_runs
from groundup.experiments.results.run_result import read_run

RATE, SIZE = "optimizer.learning_rate", "batch_size"


def groups_of(
    folder: Path, runs: Sequence[tuple[Any, float | None]], variants: tuple[str, ...] = ()
) -> list[Group]:
    """Groups of runs with these settings, which end at these losses; None diverges."""
    results = []
    for number, (settings, loss) in enumerate(runs):
        path = folder / f"run{number}"
        path.mkdir()
        (path / "config.yaml").write_text(json.dumps(settings))
        (path / "environment.json").write_text('{"data": {"content": "sha256:aa"}}')
        lines = [{"step": 1, "loss": 9.0}, {"step": 2, "loss": loss, "validation_loss": loss}]
        (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        trial = {"variant": variants[number]} if variants else None
        results.append(read_run(path, trial=trial))
    return group_runs(results, "validation_loss")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1e-3, 1e-2, 1e-1], True),
        ([3e-4, 1e-3, 3e-3, 1e-2], True),
        ([1.0, 4.0, 16.0, 64.0, 7168.0], True),
        ([0.1, 0.2, 0.3, 0.4, 0.5], False),
        ([8.0, 16.0], False),
        ([0.0, 0.1, 1.0], False),
        ([5.0], False),
    ],
)
def test_values_apart_by_ratio_get_a_log_axis(values: list[float], expected: bool) -> None:
    assert are_geometric(values) is expected


def test_one_numeric_setting_is_one_line_from_the_least_value_up(tmp_path: Path) -> None:
    runs = [
        ({RATE: rate, "seed": 0}, loss) for rate, loss in ((0.1, 3.0), (0.01, 2.0), (9.0, None))
    ]
    found = setting_chart(groups_of(tmp_path, runs), [RATE], "validation loss")
    assert found is not None and found.is_log
    (line,) = found.lines
    assert line.points == (*line.stars, (0.1, 3.0)) == ((0.01, 2.0), (0.1, 3.0))
    assert line.crosses == (9.0,) and line.half_widths == (None, None)
    assert found.description == (
        "Best validation loss by learning rate: lowest at learning rate 0.01 with 2.0000 and "
        "divergence at 9."
    )
    # Divergences are marked above every loss.
    assert found.y_range is not None and found.y_range[1] > 3.0


def test_a_second_numeric_setting_makes_a_line_for_each_of_its_values(tmp_path: Path) -> None:
    runs = [({SIZE: size, RATE: rate}, 3.0) for rate in (0.2, 0.1) for size in (1, 8, 64)]
    found = setting_chart(groups_of(tmp_path, runs), [SIZE, RATE], "loss")
    assert found is not None
    assert found.x_name == "batch size"
    assert [line.label for line in found.lines] == ["learning rate 0.1", "learning rate 0.2"]
    assert all(len(line.points) == 3 for line in found.lines)


def test_variants_make_a_line_each(tmp_path: Path) -> None:
    runs = [
        ({RATE: rate, "clip": clip}, 2.0 + rate + (clip or 0))
        for clip in (1, None)
        for rate in (0.1, 1.0)
    ]
    groups = groups_of(tmp_path, runs, ("clipped", "clipped", "free", "free"))
    found = setting_chart(groups, [RATE], "loss")
    assert found is not None
    assert {line.label for line in found.lines} == {"clipped", "free"}


def test_lengths_in_steps_that_follow_from_the_rest_are_no_second_setting(tmp_path: Path) -> None:
    runs = [({SIZE: size, "num_steps": 64 // size}, 3.0) for size in (1, 2, 8)]
    found = setting_chart(groups_of(tmp_path, runs), None, "loss")
    assert found is not None and found.x_name == "batch size"


@pytest.mark.parametrize(
    "settings",
    [
        [{"optimizer.name": name} for name in ("adamw", "muon")],
        [{"a": a, "b": b, "c": c} for a in (1, 2) for b in (1, 2) for c in (1, 2)],
        [{"a": number, "b": number / 7} for number in range(5)],
        [{"a": flag} for flag in (True, False)],
        [{"a": 1}],
    ],
)
def test_what_is_no_line_over_a_number_has_no_chart(
    tmp_path: Path, settings: list[dict[str, Any]]
) -> None:
    groups = groups_of(tmp_path, [(one, 3.0) for one in settings])
    assert setting_chart(groups, list(settings[0]), "loss") is None
    assert setting_chart(groups, None, "loss") is None


def test_words_about_the_lowest_are_of_what_has_ended() -> None:
    points, hollow = ((1.0, 2.0), (2.0, 1.5)), frozenset([2.0])
    whole = chart_over("rate", "Loss", [Line("", points, hollow=hollow)])
    assert "lowest at rate 1 with 2.0000" in whole.description
    only = chart_over("rate", "Loss", [Line("", points[1:], hollow=hollow)])
    assert "lowest at rate 2 with 1.5000 so far" in only.description


def test_a_loss_far_away_does_not_press_the_others_together() -> None:
    values = enumerate([2.0, 2.1, 2.2, 2.3, 900.0], start=1)
    chart = chart_over("rate", "Loss", [Line("", tuple((float(x), y) for x, y in values))])
    assert chart.y_range is not None and chart.y_range[1] < 4.0
    wide = chart_over("rate", "Loss", [Line("", ((1.0, 2.0), (2.0, 3.0)), half_widths=(9.0, 0.1))])
    assert wide.y_range is not None and wide.y_range[1] - wide.y_range[0] < 4.0
