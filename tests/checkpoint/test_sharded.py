"""Checkpoints that two ranks write together, in files with parts of tensors."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from groundup.checkpoint import CheckpointFolder
from groundup.errors import CheckpointError

PROGRAM = Path(__file__).parents[1] / "distributed" / "checkpoint_program.py"
SHARD = "shard-00002-model-00002-of-00002.safetensors"


def test_ranks_save_and_load_shards_and_detect_damage(tmp_path: Path, run_program: Any) -> None:
    run_program(PROGRAM, tmp_path)
    checkpoints = CheckpointFolder(tmp_path / "sharded")
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
    shutil.rmtree(checkpoints.path_of(3))
    assert checkpoints.newest().step == 1
