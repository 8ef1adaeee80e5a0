"""Checkpoints that two ranks write together, and files that hold parts of tensors."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from groundup.checkpoint import CheckpointFolder
from groundup.errors import CheckpointError

PROGRAM = Path(__file__).parents[1] / "distributed" / "checkpoint_program.py"
ROUNDING = 1e-14
SHARD = "shard-00002-model-00002-of-00002.safetensors"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, run_program: Any) -> Path:
    """What the program has written: folders of checkpoints, and results.json."""
    path = tmp_path_factory.mktemp("sharded")
    run_program(PROGRAM, path, path / "results.json")
    return path


@pytest.fixture(scope="module")
def measured(folder: Path) -> Any:
    return json.loads((folder / "results.json").read_text())


def test_each_rank_writes_its_part_exactly_and_old_checkpoints_go(measured: dict[str, Any]) -> None:
    assert measured["training"]["saved exactly"]
    assert measured["training"]["copies saved exactly"]
    assert measured["training"]["still tied"]
    name = "shard-0000{}-model-0000{}-of-00002.safetensors"
    expected = [name.format(rank, kind) for rank in (1, 2) for kind in (1, 2)]
    assert measured["training"]["files"] == [*expected, "state.json"]
    assert measured["training"]["steps"] == [1, 3, 5]
    assert measured["training"]["best"] == 1
    assert measured["training"]["state"] == {"note": 5}


def test_a_run_goes_on_exactly_and_in_another_layout(measured: dict[str, Any]) -> None:
    assert measured["training"]["two to two"] == 0
    for way in ("two to one", "one to two", "to copies"):
        assert measured["training"][way] < ROUNDING


def test_a_rank_that_cannot_write_leaves_the_last_checkpoint_and_all_ranks_know(
    measured: dict[str, Any],
) -> None:
    failing = measured["failing"]
    for message in failing["messages"]:
        assert "rank 1: No space left on device" in message
        assert "step_000002" in message
    for refused in failing["refused"]:
        assert "No such file or directory: '/nowhere/x'" in refused
    assert failing["left"] == ["step_000001"]
    assert failing["after"] == [1, 3]
    # A number for each row of a matrix is cut and read again as the rows are.
    assert failing["resumed"] == 0


def test_a_lost_or_damaged_shard_is_named(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "sharded", tmp_path / "copy")
    checkpoints = CheckpointFolder(tmp_path / "copy")
    shard = checkpoints.path_of(5) / SHARD
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with pytest.raises(CheckpointError, match=SHARD):
        checkpoints.load(5)
    shard.unlink()
    with pytest.raises(CheckpointError, match=SHARD):
        checkpoints.load(5)
    assert checkpoints.newest().step == 3
