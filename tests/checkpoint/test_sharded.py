"""Checkpoints that two ranks write together, and files that hold parts of tensors."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from groundup.checkpoint import CheckpointFolder
from groundup.checkpoint.convert import convert
from groundup.checkpoint.shard_files import find_tensors, shard_stream
from groundup.checkpoint.weights import save_stream
from groundup.errors import CheckpointError

PROGRAM = Path(__file__).parents[1] / "distributed" / "checkpoint_program.py"
ROUNDING = 1e-14


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, run_program: Any) -> Path:
    """What the program has written: folders of checkpoints, and results.json."""
    path = tmp_path_factory.mktemp("sharded")
    run_program(PROGRAM, path, path / "results.json")
    return path


@pytest.fixture(scope="module")
def measured(folder: Path) -> Any:
    return json.loads((folder / "results.json").read_text())


def test_a_save_has_the_weights_of_its_step_though_training_went_on(
    measured: dict[str, Any],
) -> None:
    assert measured["training"]["saved exactly"]
    assert measured["training"]["copies saved exactly"]
    assert measured["training"]["still tied"]


def test_each_rank_writes_files_of_its_own_and_old_checkpoints_go(
    measured: dict[str, Any],
) -> None:
    kinds = ("model", "optimizer")
    expected = [f"{kind}_0000{rank}.safetensors" for kind in kinds for rank in (0, 1)]
    assert measured["training"]["files"] == [*expected, "state.json"]
    assert measured["training"]["steps"] == [1, 3, 5]
    assert measured["training"]["best"] == 1
    assert measured["training"]["state"] == {"note": 5}


def test_a_resume_on_the_same_ranks_is_exact(measured: dict[str, Any]) -> None:
    assert measured["training"]["two to two"] == 0


@pytest.mark.parametrize("way", ["two to one", "one to two", "to copies"])
def test_a_run_goes_on_in_another_layout(measured: dict[str, Any], way: str) -> None:
    assert measured["training"][way] < ROUNDING


def test_a_rank_that_cannot_write_leaves_the_last_checkpoint_and_all_ranks_know(
    measured: dict[str, Any],
) -> None:
    failing = measured["failing"]
    for message in failing["messages"]:
        assert "rank 1: No space left on device" in message
        assert "step_000002" in message
    for refused in failing["refused"]:
        assert "No space left on device: 'metrics.jsonl'" in refused
    assert failing["left"] == ["step_000001"]
    assert failing["after"] == [1, 3]
    # A number for each row of a matrix is cut and read again as the rows are.
    assert failing["resumed"] == 0


@pytest.mark.parametrize("num_shards", [None, 1, 5, 40])
def test_one_process_converts_without_a_process_group(
    folder: Path, tmp_path: Path, num_shards: int | None
) -> None:
    shutil.copytree(folder / "sharded", tmp_path / "copy")
    checkpoints = CheckpointFolder(tmp_path / "copy")
    before = CheckpointFolder(folder / "sharded").load(3)
    convert(checkpoints.load(3), num_shards)
    assert checkpoints.steps() == [1, 3, 5]
    after = checkpoints.load(3)
    assert after.is_sharded == (num_shards is not None)
    assert len(after.files) == 2 * (num_shards or 1)
    assert after.model_shapes() == before.model_shapes()
    assert after.weights_id != before.weights_id
    assert (after.state, after.metric) == (before.state, before.metric)
    weights = after.model_state()
    assert weights["lm_head.weight"] is weights["token_embedding.weight"]
    for name, weight in before.model_state().items():
        assert torch.equal(weights[name], weight)
    found, expected = after.optimizer_state(), before.optimizer_state()
    assert found["param_groups"] == expected["param_groups"]
    for index, values in expected["state"].items():
        for key, value in values.items():
            assert torch.equal(found["state"][index][key], value)


def test_a_lost_or_damaged_shard_is_named(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "sharded", tmp_path / "copy")
    checkpoints = CheckpointFolder(tmp_path / "copy")
    shard = checkpoints.path_of(5) / "optimizer_00001.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"optimizer_00001\.safetensors is damaged"):
        checkpoints.load(5)
    shard.unlink()
    with pytest.raises(CheckpointError, match=r"optimizer_00001\.safetensors is missing"):
        checkpoints.load(5)
    assert checkpoints.newest().step == 3


class Malicious:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("was-run"),)


def test_a_pickle_of_torchs_own_checkpoints_is_never_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "step_000007"
    path.mkdir()
    (path / ".metadata").write_bytes(pickle.dumps(Malicious()))
    with pytest.raises(CheckpointError, match=r"torch\.distributed\.checkpoint.*pickle"):
        CheckpointFolder(tmp_path).load(7)
    assert not (tmp_path / "was-run").exists()


def write_part(path: Path, part: torch.Tensor, offsets: list[int], shape: list[int]) -> Path:
    save_stream(path, shard_stream({"weight": (part, offsets, shape)}, {}, {}))
    return path


def test_parts_make_the_whole_tensor(tmp_path: Path) -> None:
    whole = torch.arange(35.0).reshape(5, 7)
    first = write_part(tmp_path / "0", whole[:3], [0, 0], [5, 7])
    second = write_part(tmp_path / "1", whole[3:], [3, 0], [5, 7])
    stored = find_tensors([second, first])
    assert stored.shapes() == {"weight": (5, 7)}
    assert torch.equal(stored.read()["weight"], whole)
    overlapping = write_part(tmp_path / "2", whole[3:], [2, 0], [5, 7])
    columns = write_part(tmp_path / "3", whole[3:, :6], [3, 0], [5, 7])
    for paths in ([first], [second], [first, first], [first, overlapping], [first, columns]):
        with pytest.raises(CheckpointError, match="weight is not whole"):
            find_tensors(paths)
    other = write_part(tmp_path / "4", whole[3:].double(), [3, 0], [5, 7])
    with pytest.raises(CheckpointError, match="weight is another tensor than in other files"):
        find_tensors([first, other])


@pytest.mark.parametrize(
    ("offsets", "shape"),
    [([3, 0], [5, 7]), ([-1, 0], [5, 7]), ([0], [5, 7]), ([0, 0], [5]), (["a", 0], [5, 7])],
)
def test_a_part_that_cannot_be_where_it_says_is_refused(
    tmp_path: Path, offsets: list[Any], shape: list[int]
) -> None:
    path = write_part(tmp_path / "0", torch.zeros(3, 7), offsets, shape)
    with pytest.raises(CheckpointError, match="is damaged"):
        find_tensors([path])
