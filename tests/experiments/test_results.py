"""Results are read from run folders, even unfinished or damaged ones, and grouped."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groundup.config import load_settings
from groundup.errors import ConfigError
from groundup.experiments.groups import Group, group_runs
from groundup.experiments.run_finding import find_runs
from groundup.experiments.run_result import read_run
from groundup.experiments.statistics import confidence_interval
from groundup.experiments.trials import TrialRecord
from groundup.files import locked
from groundup.planner import count_parameters, training_flops_per_token
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runs.outcome import Outcome

WriteRun = Callable[..., Path]


def groups_of(*folders: Path) -> list[Group]:
    return group_runs([read_run(folder) for folder in folders])


def mean_of(group: Group) -> float:
    assert group.best is not None
    return group.best.mean


def test_intervals_are_t_times_the_standard_error() -> None:
    interval, once = confidence_interval([1.0, 2.0, 3.0, math.inf]), confidence_interval([3.0])
    assert interval is not None and once is not None and interval.mean == 2.0
    assert interval.half_width == pytest.approx(4.30265 / math.sqrt(3), rel=1e-4)
    for count, quantile in ((2, 12.7062), (10, 2.2622), (21, 2.0860), (500, 2.0860)):
        known = confidence_interval([-1.0, 1.0] * (count // 2) + [0.0] * (count % 2))
        variance = count // 2 * 2 / (count - 1)
        assert known is not None
        assert known.half_width == pytest.approx(quantile * math.sqrt(variance / count), rel=1e-9)
    assert once.half_width is None and not once.is_apart_from(interval)
    assert confidence_interval([math.inf]) is None
    shifted = [confidence_interval([shift + one for one in (1.0, 2.0, 3.0)]) for shift in (4, 6)]
    # Both intervals have a half width of 2.48.
    assert [one and interval.is_apart_from(one) for one in shifted] == [False, True]


def test_results_contain_everything_in_the_run_folder(tmp_path: Path, write_run: WriteRun) -> None:
    run = read_run(write_run(tmp_path / "one", [3.0, 2.0, 2.5], seed=7))
    assert (run.name, run.seed, run.metrics.last_step) == ("one", 7, 3)
    assert run.settings["optimizer.name"] == "adamw"
    assert run.data_id == "sha256:aa"
    assert run.outcome.state == "finished" and run.notes == ()
    model = load_settings(RunConfig).model
    assert run.cost["num_parameters"] == sum(count_parameters(model).values())
    assert run.cost["flops"] == 3 * 8192 * training_flops_per_token(model)
    assert (run.cost["mfu"], run.cost["memory_bytes"], run.cost["seconds"]) == (0.25, 10**9, 6.0)


def test_a_run_that_just_started_has_no_metrics(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "environment.json").write_text("{")
    run = find_runs([tmp_path]).runs[0]
    assert run.outcome.state == "empty" and len(run.notes) == 3
    # Settings of another version are kept, but have no cost.
    (tmp_path / "new" / "config.yaml").write_text("model: {d_model: 8, shape: round}\nseed: 3\n")
    run = read_run(tmp_path / "new")
    assert run.settings == {"model.d_model": 8, "model.shape": "round", "seed": 3}
    assert run.cost["num_parameters"] is None


@pytest.mark.parametrize(
    ("losses", "state"),
    [
        ([9.0, 5.0, None], "diverged"),
        ([None, None], "diverged"),
        ([5.0, math.nan], "diverged"),
        ([9.0, 4.0, 3.0, 8.0, 8.5, 9.0, 8.7, 8.9], "finished"),
        ([3.0, 3.2], "finished"),
        ([5.0], "finished"),
    ],
)
def test_without_an_outcome_a_nan_loss_means_divergence(
    tmp_path: Path, losses: list[float | None], state: str, write_run: WriteRun
) -> None:
    assert read_run(write_run(tmp_path / "one", losses)).outcome.state == state


def test_a_written_outcome_takes_precedence(tmp_path: Path, write_run: WriteRun) -> None:
    folder = write_run(tmp_path / "one", [3.0, 2.0], num_steps=9)
    assert read_run(folder).outcome.state == "unfinished"
    # A timed run: its steps do not show whether it finished.
    timed = write_run(tmp_path / "timed", [3.0, 2.0], num_steps=None, minutes=1)
    Outcome("stopped", 2, "SIGTERM").write(RunFolder(timed).outcome_file)
    assert read_run(timed).outcome == ("unfinished", "SIGTERM")
    with locked(folder):
        assert read_run(folder).outcome.state == "running"
    # A run may end before its last step, by its clock or by patience.
    Outcome("finished", 2).write(RunFolder(folder).outcome_file)
    assert read_run(folder).outcome.state == "finished"
    Outcome("failed", 2, "OSError: no disk").write(RunFolder(folder).outcome_file)
    assert read_run(folder).outcome == ("failed", "OSError: no disk")
    Outcome("diverged", 2, "any words at all").write(RunFolder(folder).outcome_file)
    assert read_run(folder).outcome.state == "diverged"
    # A run with the outcome finished has finished, however noisy its losses.
    noisy = write_run(tmp_path / "noisy", [3.0, 2.9, 3.2, 3.1, 3.0, 3.3, 3.2, None])
    Outcome("finished", 8).write(RunFolder(noisy).outcome_file)
    assert read_run(noisy).outcome.state == "finished"
    # A sweep may have recorded another outcome.
    diverged = TrialRecord("one", "a", "diverged", 0)
    assert read_run(noisy, diverged).outcome.state == "diverged"


def test_runs_that_differ_by_their_seed_are_one_group(tmp_path: Path, write_run: WriteRun) -> None:
    groups = groups_of(
        *(
            write_run(tmp_path / f"{rate}-{seed}", [loss], seed=seed, optimizer=optimizer)
            for rate in (0.1, 0.2)
            for seed, loss in enumerate([3.0 + rate, 3.1 + rate, 3.2 + rate])
            for optimizer in [{"learning_rate": rate}]
        )
    )
    assert [group.label for group in groups] == ["learning rate 0.1", "learning rate 0.2"]
    assert len(groups[0].runs) == 3
    best = groups[0].best
    assert best is not None and best.mean == pytest.approx(3.2)
    assert best.half_width == pytest.approx(0.1 * 4.30265 / math.sqrt(3), rel=1e-4)
    assert [group.mark for group in groups] == ["winner", "tied"]


def test_a_copied_run_does_not_narrow_the_interval(tmp_path: Path, write_run: WriteRun) -> None:
    (group,) = groups_of(*(write_run(tmp_path / name, [3.0], seed=4) for name in ("one", "copy")))
    assert group.best is not None and group.best.half_width is None


def test_only_finished_runs_win_and_count(tmp_path: Path, write_run: WriteRun) -> None:
    lucky = write_run(tmp_path / "lucky", [9.0, 1.0, None])
    steady = write_run(tmp_path / "steady", [9.0, 3.0], batch_size=8)
    slow = write_run(tmp_path / "slow", [9.0, 4.0], batch_size=4)
    groups = groups_of(lucky, steady, slow)
    assert [group.label for group in groups] == ["steady", "slow", "lucky"]
    # A single run has no interval; diverged runs have no mean.
    assert [group.mark for group in groups] == ["winner", "tied", ""] and groups[2].best is None
    ahead = write_run(tmp_path / "ahead", [9.0, 1.0], num_steps=50)
    done = write_run(tmp_path / "done", [9.0, 3.0])
    assert [(group.label, group.mark) for group in groups_of(ahead, done)] == [
        ("done", "winner"),
        ("ahead", ""),
    ]
    # Another seed of a finished run, which has just started.
    begun = write_run(tmp_path / "begun", [9.0], seed=1, num_steps=2)
    assert mean_of(groups_of(done, begun)[0]) == 3.0 and mean_of(groups_of(begun)[0]) == 9.0


def test_runs_on_different_texts_are_labeled_and_ranked_separately(
    tmp_path: Path, write_run: WriteRun
) -> None:
    one = write_run(tmp_path / "one", [3.0, 2.0], **{"data.shards": "here"})
    same = write_run(tmp_path / "same", [3.0, 2.0], seed=1, **{"data.shards": "there"})
    two = write_run(tmp_path / "two", [3.0, 2.5], "sha256:bb", **{"data.shards": "elsewhere"})
    worse = write_run(
        tmp_path / "worse", [3.0], "sha256:bb", batch_size=8, **{"data.shards": "elsewhere"}
    )
    (both,) = groups_of(one, same)
    assert not both.differences
    assert [group.differences["data.shards"] for group in groups_of(one, two)] == [
        "here",
        "elsewhere",
    ]
    marks = {group.label: group.mark for group in groups_of(one, two, worse)}
    assert marks == {"one": "", "two": "winner", "worse": "tied"}


def test_a_sweep_is_read_with_its_records(tmp_path: Path, write_run: WriteRun) -> None:
    sweep = tmp_path / "all" / "rates"
    for seed in (0, 1):
        write_run(sweep / "runs" / f"learning_rate=0.1+seed={seed}", [3.0, 2.0], seed=seed)
    point = {"point": "learning_rate=0.1"}
    trials: list[dict[str, Any]] = [
        {"trial": f"learning_rate=0.1+seed={seed}", "status": status, "seed": seed, **point}
        for seed, status in enumerate(["finished", "diverged"])
    ]
    trials.append({"trial": "learning_rate=9", "status": "failed", "seed": 0, **point})
    lines = "".join(json.dumps(trial) + "\n" for trial in trials)
    (sweep / "trials.jsonl").write_text(lines + '{"trial": "torn')
    (sweep / "sweep.yaml").write_text("name: rates\nwhy: to find the edge\nunknown: [1]\n")
    # A folder of sweeps stands for all their runs.
    found = find_runs([tmp_path / "all"])
    assert [run.outcome.state for run in found.runs] == ["finished", "diverged"]
    assert (found.names, found.reasons) == (["rates"], ["to find the edge"])
    assert len(found.notes) == 1 and "learning_rate=9" in found.notes[0]
    assert group_runs(found.runs)[0].label == "learning rate 0.1"
    (sweep / "trials.jsonl").write_text("[]\n")
    (sweep / "sweep.yaml").unlink()
    damaged = find_runs([sweep])
    assert len(damaged.runs) == 2 and len(damaged.notes) == 2


def test_runs_are_read_once_and_distinguished_by_name(tmp_path: Path, write_run: WriteRun) -> None:
    one = write_run(tmp_path / "a" / "runs" / "same", [3.0])
    other = write_run(tmp_path / "b" / "runs" / "same", [3.0])
    third = write_run(tmp_path / "c" / "b" / "runs" / "same", [3.0])
    found = find_runs([one, other, one, third, tmp_path / "a"])
    assert [run.name for run in found.runs] == [str(one), str(other), str(third)]
    with pytest.raises(ConfigError, match="contains no runs"):
        find_runs([tmp_path / "nothing"])
