"""Runs as their folders tell them, however unfinished, torn or odd these are."""

import fcntl
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundup.config import load_settings
from groundup.errors import ConfigError
from groundup.experiments.groups import choose_measure, group_runs, shared_settings
from groundup.experiments.run_finding import find_runs
from groundup.experiments.run_result import RunResult, read_run
from groundup.experiments.statistics import confidence_interval, student_quantile
from groundup.planner import count_parameters, training_flops_per_token
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runs.outcome import Outcome

WriteRun = Callable[..., Path]


def groups_of(*runs: RunResult) -> list[Any]:
    return group_runs(runs, choose_measure(runs))


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (30, 2.0423), (500, 1.9647)],
)
def test_the_quantile_is_students(degrees: int, quantile: float) -> None:
    assert student_quantile(degrees) == pytest.approx(quantile, abs=5e-5)


def test_an_interval_is_mean_and_t_standard_errors() -> None:
    interval = confidence_interval([1.0, 2.0, 3.0])
    assert interval is not None
    assert interval.mean == 2.0
    assert interval.half_width == pytest.approx(4.30265 / math.sqrt(3), rel=1e-5)


def test_one_measurement_has_no_interval_and_none_has_no_mean() -> None:
    once = confidence_interval([3.0, math.nan])
    assert once is not None and once.half_width is None and once.num_values == 1
    assert confidence_interval([math.inf]) is None


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20), st.floats(-1e3, 1e3))
def test_intervals_move_with_their_values(values: list[float], shift: float) -> None:
    here, there = confidence_interval(values), confidence_interval([v + shift for v in values])
    assert here is not None and there is not None
    assert there.mean == pytest.approx(here.mean + shift, abs=1e-6)
    assert there.half_width == pytest.approx(here.half_width, abs=1e-3)


def test_a_run_tells_all_that_its_folder_holds(tmp_path: Path, write_run: WriteRun) -> None:
    run = read_run(write_run(tmp_path / "one", [3.0, 2.0, 2.5], seed=7))
    assert (run.name, run.seed, run.metrics.last_step) == ("one", 7, 3)
    assert run.settings["optimizer.name"] == "adamw"
    assert run.data_id == "sha256:aa"
    assert run.outcome.state == "finished"
    assert run.metrics.lowest("validation_loss") == (2.0, 2)
    assert run.notes == ()


def test_cost_is_what_the_metrics_say(tmp_path: Path, write_run: WriteRun) -> None:
    cost = read_run(write_run(tmp_path / "one", [3.0, 2.0])).cost
    model = load_settings(RunConfig).model
    assert cost.num_parameters == sum(count_parameters(model).values())
    assert (cost.tokens, cost.mfu, cost.memory_bytes) == (16384, 0.25, 10**9)
    assert cost.flops == 16384 * training_flops_per_token(model)


@pytest.mark.parametrize(
    ("spoil", "num_lines", "note"),
    [
        (
            lambda good: good + '{"step": 3, "lo',
            2,
            "the last line of metrics.jsonl is unfinished and was left out",
        ),
        (
            lambda good: f"[1]\n{good}\0\n" + "[" * 100_000 + "\n",
            2,
            "damaged lines were left out: 3 (first: line 1)",
        ),
        (lambda good: "", 0, "metrics.jsonl has no metrics yet"),
    ],
    ids=["torn", "damaged", "empty"],
)
def test_lines_that_cannot_be_read_are_named_and_the_rest_kept(
    tmp_path: Path,
    write_run: WriteRun,
    spoil: Callable[[str], str],
    num_lines: int,
    note: str,
) -> None:
    file = write_run(tmp_path / "one", [3.0, 2.0]) / "metrics.jsonl"
    file.write_text(spoil(file.read_text()))
    run = read_run(file.parent)
    assert (run.metrics.num_lines, run.notes) == (num_lines, (note,))
    assert run.outcome.state == ("finished" if num_lines else "empty")


def test_a_folder_that_has_just_begun_is_a_run_without_figures(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "environment.json").write_text("{")
    run = find_runs([tmp_path]).runs[0]
    assert run.outcome.state == "empty"
    assert len(run.notes) == 3
    assert run.cost.num_parameters is None


def test_a_run_that_somebody_trains_is_running(tmp_path: Path, write_run: WriteRun) -> None:
    folder = write_run(tmp_path / "one", [3.0, 2.0], num_steps=100)
    assert read_run(folder).outcome.state == "unfinished"
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert read_run(folder).outcome.state == "running"
    finally:
        os.close(lock)


@pytest.mark.parametrize(
    ("losses", "state"),
    [
        ([9.0, 5.0, None], "diverged"),
        ([None, None], "diverged"),
        ([9.0, 4.0, 3.0, 8.0, 8.5, 9.0, 8.7, 8.9], "finished"),
        ([5.0, math.nan], "diverged"),
        ([9.0, 5.0, 3.0, 3.4, 3.1, 3.2, 3.0], "finished"),
        ([5.0, 5.1, 4.9], "finished"),
        ([5.0], "finished"),
        ([3.0, 3.2], "finished"),
    ],
)
def test_without_an_outcome_a_loss_that_is_no_number_is_divergence(
    tmp_path: Path, losses: list[float | None], state: str, write_run: WriteRun
) -> None:
    assert read_run(write_run(tmp_path / "one", losses)).outcome.state == state


def test_an_outcome_that_was_written_is_what_counts(tmp_path: Path, write_run: WriteRun) -> None:
    folder = write_run(tmp_path / "one", [3.0, 2.0], num_steps=9)
    Outcome("failed", 2, "OSError: no disk").write(RunFolder(folder).outcome_file)
    outcome = read_run(folder).outcome
    assert (outcome.state, outcome.sentence) == ("failed", "OSError: no disk")
    Outcome("diverged", 2, "any words at all").write(RunFolder(folder).outcome_file)
    assert read_run(folder).outcome.state == "diverged"
    # A finished run of noisy losses has finished, whatever they look like.
    noisy = write_run(tmp_path / "noisy", [3.0, 2.9, 3.2, 3.1, 3.0, 3.3, 3.2, None])
    Outcome("finished", 8).write(RunFolder(noisy).outcome_file)
    assert read_run(noisy).outcome.state == "finished"


def test_what_was_measured_once_is_not_told_apart(tmp_path: Path, write_run: WriteRun) -> None:
    for size, loss in ((4, 2.0), (8, 3.0)):
        write_run(tmp_path / f"b{size}", [9.0, loss], batch_size=size)
    groups = group_runs(find_runs([tmp_path]).runs, "validation_loss")
    assert [sorted(group.marks) for group in groups] == [["winner"], ["tied"]]


def test_settings_of_another_version_are_shown_without_a_plan(
    tmp_path: Path, write_run: WriteRun
) -> None:
    folder = write_run(tmp_path / "one", [3.0])
    (folder / "config.yaml").write_text("model: {d_model: 8, shape: round}\nseed: 3\n")
    run = read_run(folder)
    assert run.settings == {"model.d_model": 8, "model.shape": "round", "seed": 3}
    assert run.cost.num_parameters is None


def test_runs_that_differ_by_their_seed_are_one_group(tmp_path: Path, write_run: WriteRun) -> None:
    runs = [
        read_run(write_run(tmp_path / f"{rate}-{seed}", [loss], seed=seed, optimizer=optimizer))
        for rate in (0.1, 0.2)
        for seed, loss in enumerate([3.0 + rate, 3.1 + rate, 3.2 + rate])
        for optimizer in [{"learning_rate": rate}]
    ]
    groups = groups_of(*runs)
    assert [group.label for group in groups] == ["learning rate 0.1", "learning rate 0.2"]
    assert groups[0].seeds == [0, 1, 2]
    assert groups[0].best.mean == pytest.approx(3.2)
    assert groups[0].best.half_width == pytest.approx(0.1 * 4.30265 / math.sqrt(3), rel=1e-4)
    assert groups[0].is_winner and groups[1].marks == {"tied"}


def test_repetitions_of_a_point_are_one_group_however_many_steps_each_had(
    tmp_path: Path, write_run: WriteRun
) -> None:
    runs = []
    for seed, losses in enumerate(([3.0, 2.0], [3.0, 2.5, 2.1])):
        path = write_run(tmp_path / f"a+seed={seed}", losses, seed=seed)
        runs.append(read_run(path, trial={"point": "a", "status": "finished"}))
    elsewhere = write_run(tmp_path / "other" / "a+seed=0", [3.0], seed=0)
    runs.append(read_run(elsewhere, trial={"point": "a", "status": "finished"}))
    assert [len(group.runs) for group in groups_of(*runs)] == [2, 1]


def test_a_copy_of_a_run_makes_nothing_more_certain(tmp_path: Path, write_run: WriteRun) -> None:
    runs = [read_run(write_run(tmp_path / name, [3.0], seed=4)) for name in ("one", "copy")]
    (group,) = groups_of(*runs)
    assert group.best.num_values == 1 and group.best.half_width is None
    assert group.repeated_seeds == [4]


def test_a_diverged_run_never_wins_and_leaves_the_mean_alone(
    tmp_path: Path, write_run: WriteRun
) -> None:
    lucky = read_run(write_run(tmp_path / "lucky", [9.0, 1.0, None]))
    steady = read_run(write_run(tmp_path / "steady", [9.0, 3.0], batch_size=8))
    slow = read_run(write_run(tmp_path / "slow", [9.0, 4.0], batch_size=4))
    groups = groups_of(lucky, steady, slow)
    assert [group.label for group in groups] == ["steady", "slow", "lucky"]
    assert [group.is_winner for group in groups] == [True, False, False]
    assert groups[2].best is None


def test_only_what_has_finished_wins_and_counts(tmp_path: Path, write_run: WriteRun) -> None:
    ahead = read_run(write_run(tmp_path / "ahead", [9.0, 1.0], num_steps=50))
    done = read_run(write_run(tmp_path / "done", [9.0, 3.0]))
    assert [group.label for group in groups_of(ahead, done)] == ["done", "ahead"]
    assert groups_of(ahead, done)[0].is_winner
    behind = read_run(write_run(tmp_path / "behind", [9.0, 4.0], num_steps=50, batch_size=8))
    assert not any(group.is_winner for group in groups_of(ahead, behind))
    # Another seed of what is done, which has just begun.
    begun = read_run(write_run(tmp_path / "begun", [9.0], seed=1, num_steps=2))
    both, alone = groups_of(done, begun)[0], groups_of(begun)[0]
    assert both.best is not None and both.best.mean == 3.0 and both.best.half_width is None
    assert not both.is_complete
    assert alone.best is not None and alone.best.mean == 9.0


def test_bits_per_byte_are_those_of_the_best_loss(tmp_path: Path, write_run: WriteRun) -> None:
    folder = write_run(tmp_path / "run", [4.0, 2.0, 3.0])
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line, bits in zip(lines, (1.8, 0.9, 1.4), strict=True):
        line["bits_per_byte"] = bits
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    group = groups_of(read_run(folder))[0]
    assert group.at_best("bits_per_byte").mean == 0.9
    assert group.last("bits_per_byte").mean == 1.4
    assert group.at_best("unheard_of") is None


def test_texts_that_differ_are_told_by_their_places(tmp_path: Path, write_run: WriteRun) -> None:
    one = write_run(tmp_path / "one", [3.0, 2.0], **{"data.shards": "here"})
    same = write_run(tmp_path / "same", [3.0, 2.0], seed=1, **{"data.shards": "there"})
    two = write_run(
        tmp_path / "two", [3.0, 2.0], "sha256:bb", "sha256:uu", **{"data.shards": "elsewhere"}
    )
    runs = [read_run(folder) for folder in (one, same, two)]
    assert len(groups_of(*runs[:2])) == 1 and not groups_of(*runs[:2])[0].differences
    assert [group.differences["data.shards"] for group in groups_of(runs[0], runs[2])] == [
        "here",
        "elsewhere",
    ]
    shared = shared_settings(runs)
    assert "num_steps" in shared and not {"data.shards", "seed"} & set(shared)


def test_each_data_set_has_its_own_winner(tmp_path: Path, write_run: WriteRun) -> None:
    runs = []
    for data in ("web", "stories"):
        for size, loss in ((4, 3.0), (8, 2.0)):
            folder = tmp_path / f"{data}{size}"
            runs.append(read_run(write_run(folder, [loss], data, batch_size=size)))
    winners = [group.label for group in groups_of(*runs) if group.is_winner]
    assert sorted(winners) == ["stories8", "web8"]


def test_a_sweep_is_read_with_what_it_noted(tmp_path: Path, write_run: WriteRun) -> None:
    sweep = tmp_path / "rates"
    for seed in (0, 1):
        write_run(sweep / "runs" / f"learning_rate=0.1+seed={seed}", [3.0, 2.0], seed=seed)
    trials: list[dict[str, Any]] = [
        {"trial": f"learning_rate=0.1+seed={seed}", "point": "learning_rate=0.1", "status": status}
        for seed, status in enumerate(["finished", "pruned"])
    ]
    trials.append({"trial": "learning_rate=9", "status": "failed"})
    lines = "".join(json.dumps(trial) + "\n" for trial in trials)
    (sweep / "trials.jsonl").write_text(lines + '{"trial": "torn')
    (sweep / "sweep.yaml").write_text("name: rates\nwhy: to find the edge\nunknown: [1]\n")
    found = find_runs([sweep])
    assert [run.outcome.state for run in found.runs] == ["finished", "pruned"]
    assert found.reasons == ["to find the edge"]
    assert found.notes == ["trial learning_rate=9 of rates (failed) left no run folder"]
    assert groups_of(*found.runs)[0].label == "learning rate 0.1"


def test_a_folder_of_sweeps_is_all_their_runs(tmp_path: Path, write_run: WriteRun) -> None:
    for name in ("rates", "sizes"):
        write_run(tmp_path / name / "runs" / "one", [3.0])
        (tmp_path / name / "sweep.yaml").write_text(f"name: {name}\n")
    found = find_runs([tmp_path])
    assert [run.name for run in found.runs] == ["rates/one", "sizes/one"]
    assert found.names == ["rates", "sizes"]


def test_a_lone_metrics_file_is_a_run(tmp_path: Path, write_run: WriteRun) -> None:
    folder = write_run(tmp_path / "one", [3.0, 2.0])
    file = (folder / "metrics.jsonl").rename(tmp_path / "kept.jsonl")
    run = find_runs([file]).runs[0]
    assert (run.name, run.metrics.num_lines, run.outcome.state) == ("kept", 2, "finished")


def test_runs_are_read_once_and_told_apart_by_name(tmp_path: Path, write_run: WriteRun) -> None:
    one = write_run(tmp_path / "a" / "runs" / "same", [3.0])
    other = write_run(tmp_path / "b" / "runs" / "same", [3.0])
    found = find_runs([one, other, one, tmp_path / "a"])
    assert [run.name for run in found.runs] == ["a/same", "b/same"]


def test_a_path_without_runs_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no run: give run folders"):
        find_runs([tmp_path])
