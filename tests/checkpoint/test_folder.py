"""Checkpoint folders: which are kept, detection of damage, and the fallback."""

import json
import logging
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from groundup import __version__, files
from groundup.checkpoint import Checkpoint, CheckpointFolder, record
from groundup.checkpoint.record import _hash
from groundup.errors import CheckpointError
from groundup.files import hash_file, remove_leftovers

from .made_states import check, save

NAMES = ["model.safetensors", "optimizer.safetensors", "state.json"]


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path / "runs" / "one" / "checkpoints")


def test_checkpoints_round_trip_bitwise_in_three_files(
    folder: CheckpointFolder,
) -> None:
    path = save(folder, 100, metric=1.25)
    assert path == folder.path / "step_000100"
    for checkpoint in (folder.newest(), folder.best(), folder.load(100)):
        assert (checkpoint.step, checkpoint.metric, checkpoint.path) == (100, 1.25, path)
        check(checkpoint, 100)
    assert os.listdir(folder.path) == ["step_000100"] and sorted(os.listdir(path)) == NAMES
    record = json.loads((path / "state.json").read_text("utf-8"))
    assert (record["format"], record["version"]) == ("groundup-checkpoint", 1)
    assert (record["groundup"], record["step"], record["metric"]) == (__version__, 100, 1.25)
    assert record["state"]["seed"] == 100
    for name in NAMES[:2]:
        entry = {"num_bytes": (path / name).stat().st_size, "hash": hash_file(path / name)}
        assert record["files"][name] == entry
    assert folder.newest().weights_id == record["files"][NAMES[0]]["hash"]


def test_invalid_or_missing_checkpoints_raise(folder: CheckpointFolder, tmp_path: Path) -> None:
    deep: dict[str, Any] = {"deep": {"average": torch.ones(2)}}
    for optimizer, state, place in (({}, deep, r"deep\.average"), ({"odd": {1}}, {}, "odd")):
        with pytest.raises(CheckpointError, match=place):
            folder.save(1, {}, optimizer, state)
    assert not folder.path.exists()
    (tmp_path / "file").write_text("x")
    for empty in (folder, CheckpointFolder(tmp_path), CheckpointFolder(tmp_path / "file")):
        assert empty.steps() == []
        for find in (empty.newest, empty.best):
            with pytest.raises(CheckpointError, match="has no checkpoint yet"):
                find()
    save(folder, 3)
    with pytest.raises(CheckpointError, match="step 4; it has 3"):
        folder.load(4)
    with pytest.raises(CheckpointError, match="metric"):
        folder.best()


@given(
    saves=st.lists(
        st.tuples(st.integers(0, 12), st.none() | st.sampled_from([1.0, 2.0, 3.0, math.nan])),
        max_size=9,
    ),
    keep_last=st.none() | st.integers(1, 4),
    keep_best=st.booleans(),
)
@example(saves=[(1, 0.5), (2, 0.6), (3, 0.7), (4, 0.8)], keep_last=1, keep_best=True)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_latest_and_the_best_are_kept(
    tmp_path: Path, saves: list[tuple[int, float | None]], keep_last: int | None, keep_best: bool
) -> None:
    shutil.rmtree(tmp_path / "c", ignore_errors=True)
    folder = CheckpointFolder(tmp_path / "c", keep_last, keep_best)
    expected: dict[int, float | None] = {}
    for step, metric in saves:
        folder.save(step, {}, {}, {}, metric)
        expected[step] = None if metric is None or math.isnan(metric) else metric
        if keep_last is not None:
            kept: set[int | None] = {*sorted(expected)[-keep_last:], step}
            kept |= {best_of(expected)} if keep_best else set()
            expected = {other: expected[other] for other in expected if other in kept}
        assert sorted(os.listdir(folder.path)) == [f"step_{one:06d}" for one in sorted(expected)]
        assert folder.steps() == sorted(expected)
        assert folder.newest().step == max(expected)
        if (best := best_of(expected)) is not None:
            assert folder.best().step == best


def best_of(metrics: dict[int, float | None]) -> int | None:
    measured = [(metric, -step) for step, metric in metrics.items() if metric is not None]
    return -min(measured)[1] if measured else None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["missing", "empty", "cut", "a folder", "a pipe"])
def test_a_damaged_newest_checkpoint_is_skipped_with_a_warning(
    folder: CheckpointFolder, caplog: pytest.LogCaptureFixture, name: str, kind: str
) -> None:
    save(folder, 1, metric=2.0)
    path = save(folder, 2, metric=1.0) / name
    data = path.read_bytes()
    path.unlink()
    if kind == "a folder":
        path.mkdir()
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind != "missing":
        path.write_bytes(b"" if kind == "empty" else data[:-2])
    for find in (folder.newest, folder.best):
        caplog.clear()
        check(find(), 1)
        assert str(path) in caplog.text and caplog.records[0].levelno == logging.WARNING
    with pytest.raises(CheckpointError, match=str(path)):
        folder.load(2)


@pytest.mark.slow
def test_any_flipped_bit_is_detected(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    path = save(folder, 1, metric=1.0)
    for name in NAMES:
        data = (path / name).read_bytes()
        for position in range(len(data)):
            changed = bytearray(data)
            changed[position] ^= 1 << (position % 8)
            (path / name).write_bytes(changed)
            with pytest.raises(CheckpointError, match=str(path / name)):
                folder.load(1)
        (path / name).write_bytes(data)
    folder.load(1)


@pytest.mark.parametrize(
    ("change", "noun"),
    [
        (lambda v: v["files"]["model.safetensors"].update(hash="sha256:00"), "model.*sha256:00"),
        (lambda v: v["files"]["model.safetensors"].update(num_bytes=3), "has 3"),
        (lambda v: v["files"].update({"../../x": {"num_bytes": 0, "hash": ""}}), "../../x"),
        (lambda v: v["files"].pop("optimizer.safetensors"), "state.json"),
        (lambda v: v.update(version=4), "version 4"),
        (lambda v: v.update(format="other"), "groundup-checkpoint"),
        (lambda v: v.update(step=7), "step 7"),
        (lambda v: v.update(extra=1), "extra"),
        (lambda v: v.update(state={"$call": 1}), r"state\.json .*\$call"),
    ],
)
def test_invalid_records_are_rejected(
    folder: CheckpointFolder, change: Callable[[dict[str, Any]], None], noun: str
) -> None:
    path = save(folder, 1) / "state.json"
    value = json.loads(path.read_text("utf-8"))
    del value["hash"]
    change(value)
    # Consistent with the record's own hash.
    path.write_text(json.dumps(value | {"hash": _hash(value)}))
    with pytest.raises(CheckpointError, match=noun):
        folder.load(1)


def test_damaged_checkpoints_are_neither_counted_nor_removed(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep_last=2, keep_best=False)
    save(folder, 1)
    (save(folder, 2) / "state.json").unlink()
    os.truncate(save(folder, 3) / "model.safetensors", 99)
    save(folder, 4)
    assert folder.steps() == [1, 2, 3, 4]
    weights = save(folder, 300) / NAMES[0]
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert folder.steps() == [2, 3, 4, 300]
    # The one just saved stays, although a damaged later one passes the check of sizes.
    folder.keep_last = 1
    for step in (200, 250):
        save(folder, step)
        check(folder.newest(), step)
    assert folder.steps() == [2, 3, 250, 300]


def test_the_next_save_cleans_up_after_killed_writers(
    folder: CheckpointFolder,
) -> None:
    path = save(folder, 1)
    path.rename(path.with_name(".step_000001.replaced-0123456789ab"))
    for name in (".step_000004.writing", ".step_000004.discarded", ".step_000002.replaced"):
        (folder.path / f"{name}-0123456789ab").mkdir()
    (folder.path / "step_000002").mkdir()
    assert folder.steps() == [1, 2]
    check(folder.load(1), 1)
    save(folder, 2)
    assert sorted(os.listdir(folder.path)) == ["step_000001", "step_000002"]
    check(folder.load(1), 1)


def test_cleanup_between_creating_and_locking_is_harmless(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_locked, made = files.locked, list[Path]()

    def clean_then_lock(path: Path, *, wait: bool = False) -> Any:
        if not made:
            made.append(path)
            remove_leftovers(folder.path)
            assert not path.exists()
        return real_locked(path, wait=wait)

    monkeypatch.setattr(files, "locked", clean_then_lock)
    save(folder, 1)
    assert os.listdir(folder.path) == ["step_000001"]


def test_concurrent_removal_is_not_damage(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save(folder, 1)
    real_load = CheckpointFolder.load

    def load(self: CheckpointFolder, step: int) -> Checkpoint:
        if step == 1:  # Another process saves 2 and drops 1 before this one reads it.
            save(folder, 2)
            shutil.rmtree(folder.path / "step_000001")
        return real_load(self, step)

    monkeypatch.setattr(CheckpointFolder, "load", load)
    assert folder.newest().step == 2
    assert caplog.text == ""


def test_weights_only_does_not_hash_the_optimizer(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, hashed = save(folder, 1, metric=1.0), list[Path]()
    monkeypatch.setattr(record, "hash_file", lambda file: hashed.append(file) or hash_file(file))  # type: ignore[func-returns-value]
    weights = CheckpointFolder(folder.path, weights_only=True)
    os.truncate(path / NAMES[1], 9)
    for checkpoint in (weights.newest(), weights.best(), weights.load(1)):
        assert checkpoint.model_state()
        with pytest.raises(CheckpointError):
            checkpoint.optimizer_state()
    assert hashed == [path / NAMES[0]] * 3
    os.truncate(path / NAMES[0], 9)
    with pytest.raises(CheckpointError, match=NAMES[0]):
        weights.newest()
