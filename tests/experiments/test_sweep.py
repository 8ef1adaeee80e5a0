"""What trials came to: points ranked, and a line about each end."""

from typing import Any

import pytest

from groundup.experiments.results.run_result import describe_divergence
from groundup.experiments.runner import describe_end
from groundup.experiments.sweep import summarize
from groundup.experiments.trials import TrialRecord
from groundup.runs.metrics import Metrics


def record(point: str, seed: int, status: str, loss: float | None) -> TrialRecord:
    return TrialRecord(
        trial=f"{point}+seed={seed}",
        point=point,
        status=status,  # type: ignore[arg-type]
        seed=seed,
        best_validation_loss=loss,
    )


def test_points_are_ranked_by_their_mean_and_unsound_ones_come_last() -> None:
    results = summarize(
        [
            record("lucky", 0, "finished", 1.0),
            record("lucky", 1, "diverged", 9.0),
            record("good", 1, "finished", 2.2),
            record("good", 0, "finished", 2.0),
            record("poor", 0, "finished", 3.0),
            record("gone", 0, "diverged", None),
        ]
    )
    assert [result.point for result in results] == ["good", "poor", "lucky", "gone"]
    assert [r.seed for r in results[0].records] == [0, 1]
    assert results[0].loss is not None and results[0].loss.mean == pytest.approx(2.1)
    assert results[2].loss is not None and results[2].loss.mean == 1.0
    assert results[3].loss is None


def test_a_run_that_turned_up_again_is_ranked_by_its_lowest_loss() -> None:
    common: dict[str, Any] = {"status": "finished", "seed": 0}
    turned = TrialRecord("a", "a", **common, validation_loss=4.0, best_validation_loss=2.0)
    steady = TrialRecord("b", "b", **common, validation_loss=3.0, best_validation_loss=3.0)
    assert [result.point for result in summarize([steady, turned])] == ["a", "b"]


def test_a_run_without_validation_is_ranked_by_its_training_loss() -> None:
    only = TrialRecord("a", "a", "finished", 0, loss=3.0)
    steadier = TrialRecord("b", "b", "finished", 0, loss=2.0, loss_at_end=2.5)
    first, second = summarize([only, steadier])
    assert first.loss is not None and (first.point, first.loss.mean) == ("b", 2.5)
    assert second.loss is not None and second.loss.mean == 3.0


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (
            [{"loss": 6.238}, *[{"skipped": True}] * 5],
            "its last 5 steps could not be taken, for loss or gradients were not finite",
        ),
        ([{"loss": 6.0}, {"skipped": True}], "its last step could not be taken, for loss or "),
        ([{"loss": 6.0}, {"loss": None}], "its loss was no finite number at the end, after 6"),
        ([{"loss": None}], "its loss was never a finite number"),
        (
            [{"loss": 6.0}, {"loss": 3.0}, {"loss": 5.5}],
            "its training loss was 5.5 at the end, after 3 at step 2",
        ),
    ],
)
def test_a_trial_that_diverged_is_said_to_have_once(
    lines: list[dict[str, Any]], reason: str
) -> None:
    metrics = Metrics()
    for step, line in enumerate(lines, start=1):
        metrics.add({"step": step, **line})
    found = describe_divergence(metrics)
    assert found.startswith(reason)
    ended = TrialRecord("a", "a", "diverged", 0, reason=found, step=12, best_validation_loss=6.2383)
    assert describe_end(ended) == f"a diverged at step 12, loss 6.2383: {found}"
    assert describe_end(ended).count("diverged") == 1
