"""What a checkpoint knows of its run, that the best one is the best one, and what waiting cost."""

import re
from collections.abc import Callable

import pytest

from groundup.checkpoint import CheckpointFolder
from groundup.files import read_json_lines
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.training.execution import settle
from groundup.training.loop import train

MakeConfig = Callable[..., RunConfig]


def checkpoints_of(config: RunConfig) -> CheckpointFolder:
    return CheckpointFolder(RunFolder(config.run_folder).checkpoints)


def test_a_checkpoint_holds_the_settings_of_its_run(make_config: MakeConfig) -> None:
    config = make_config()
    train(config)
    settings = checkpoints_of(config).newest().state["settings"]
    assert settings == settle(config).model_dump(mode="json")


@pytest.mark.parametrize("saving", [2, 3, 5])
def test_the_best_checkpoint_is_the_best_of_those_saved_whatever_the_intervals(
    make_config: MakeConfig, saving: int
) -> None:
    # So great a rate that the loss turns up again on the way.
    changes = {
        "optimizer.learning_rate": 0.3,
        "evaluation.every_steps": 4,
        "checkpoints.every_steps": saving,
        "checkpoints.keep_last": 1,
    }
    config = make_config("run", changes)
    train(config)
    losses = {
        record["step"]: record["validation_loss"]
        for record in read_json_lines(RunFolder(config.run_folder).metrics_file)
        if "validation_loss" in record
    }
    saved = {step for step in range(1, 13) if step % saving == 0 or step == 12}
    assert set(losses) == saved | {4, 8, 12}
    best = checkpoints_of(config).best()
    assert best.step == min(saved, key=losses.__getitem__)
    assert best.metric == losses[best.step]


def test_without_a_best_one_checkpoints_are_not_measured(make_config: MakeConfig) -> None:
    changes = {
        "evaluation.every_steps": 4,
        "checkpoints.every_steps": 3,
        "checkpoints.keep_best": False,
    }
    config = make_config("run", changes)
    train(config)
    records = read_json_lines(RunFolder(config.run_folder).metrics_file)
    assert [r["step"] for r in records if "validation_loss" in r] == [4, 8, 12]


def test_the_log_says_how_long_was_waited_for_batches(make_config: MakeConfig) -> None:
    config = make_config()
    train(config)
    log = RunFolder(config.run_folder).log_file.read_text("utf-8")
    assert re.search(r"waited for batches: [0-9.]+ s, [0-9.]+% of the time", log)
