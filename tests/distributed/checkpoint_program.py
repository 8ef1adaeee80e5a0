"""Program: two ranks save and load sharded checkpoints, below the given folder."""

import dataclasses
import errno
import os
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from forked_ranks import difference, run_ranks, take_steps, tiny_model, weights
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from groundup.checkpoint import CheckpointFolder, restore_optimizer
from groundup.checkpoint.record import FileEntry
from groundup.checkpoint.sharded import ShardedFolder, load_into
from groundup.distributed.process_group import ProcessGroup
from groundup.distributed.sharding import shard
from groundup.optim import Muon
from groundup.optim.build import build_optimizer
from groundup.optim.config import OptimizerConfig

FOLDER = Path(sys.argv[1])
ROUNDING = 1e-14


class Sharded:
    """A sharded run on all ranks."""

    def __init__(
        self, ranks: ProcessGroup, optimizer: str, strategy: Literal["fsdp", "hsdp"] = "fsdp"
    ) -> None:
        if strategy == "hsdp":
            ranks = dataclasses.replace(ranks, local_size=1)
        self.model = tiny_model(tie_embeddings=True)
        self.reduction = shard(self.model, ranks, strategy, torch.device("cpu"))
        self.local = self.reduction.parameters
        self.optimizer = build_optimizer(
            self.local,
            OptimizerConfig(name=optimizer, ema_fraction=0.5, normalize_rows=True),
            num_steps=9,
        )
        if isinstance(self.optimizer, Muon):
            self.optimizer.matrices = self.reduction.matrices()

    def step_to(self, end: int, first: int = 0) -> dict[str, Tensor]:
        take_steps(self.model, self.optimizer, self.reduction, 2, first=first, end=end)
        return weights(self.model)

    def save(self, folder: CheckpointFolder, step: int, metric: float | None = None) -> None:
        state = self.local.state_of(self.optimizer)
        folder.save(step, self.model.state_dict(), state, {"note": step}, metric)

    def load(self, folder: CheckpointFolder, step: int) -> None:
        allocate = self.local.allocator_for(self.optimizer)
        state = load_into(folder.load(step), self.model.state_dict(), allocate)
        restore_optimizer(self.optimizer, state)


def save_while_training(ranks: ProcessGroup, group: Any) -> None:
    """Saves and resumes are bitwise exact, also in another layout; old checkpoints are removed."""
    folder = ShardedFolder(FOLDER / "sharded", keep_last=2, group=group)
    run = Sharded(ranks, "adamw")
    for step in (1, 2, 3):
        at_three = run.step_to(step, first=step - 1)
        run.save(folder, step, metric=0.5 if step == 1 else None)
    at_five = run.step_to(5, first=3)
    run.save(folder, 5)
    assert folder.steps() == [1, 3, 5] and folder.best().step == 1
    assert folder.newest().state == {"note": 5}
    name = "shard-0000{}-model-0000{}-of-00002.safetensors"
    shards = [name.format(rank, kind) for rank in (1, 2) for kind in (1, 2)]
    assert sorted(os.listdir(folder.path_of(5))) == [*shards, "state.json"]
    found = folder.load(3).adapted_state()
    assert difference(found, at_three) == 0
    assert found["lm_head.weight"] is found["token_embedding.weight"]
    same, copies = Sharded(ranks, "adamw"), Sharded(ranks, "adamw", "hsdp")
    for other, most in ((same, 0.0), (copies, ROUNDING)):
        other.load(folder, 3)
        assert difference(other.step_to(5, first=3), at_five) <= most
    copies_folder = ShardedFolder(FOLDER / "copies", group=group)
    copies.save(copies_folder, 5)
    assert difference(copies_folder.load(5).adapted_state(), weights(copies.model)) == 0


def fail_on_one_rank(ranks: ProcessGroup, group: Any) -> None:
    """If one rank cannot write, the last checkpoint stays and all ranks raise."""
    folder = ShardedFolder(FOLDER / "failing", group=group)
    run = Sharded(ranks, "muon")
    run.step_to(1)
    run.save(folder, 1)
    hash_file = FileEntry.of

    def fail(path: Path) -> FileEntry:
        if ranks.rank == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return hash_file(path)

    FileEntry.of = fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match=r"rank 1: No space left on device.*step_000002"):
        run.save(folder, 2)
    FileEntry.of = hash_file  # type: ignore[method-assign]
    assert not ranks.is_first or os.listdir(folder.path) == ["step_000001"]
    run.save(folder, 3)
    assert folder.steps() == [1, 3]
    other = Sharded(ranks, "muon")
    other.load(folder, 3)
    # One number per row of a matrix is sharded like the rows.
    assert difference(other.step_to(5, first=1), run.step_to(5, first=1)) == 0
    here: list[int] = []
    folder.prepare(lambda: here.append(ranks.rank))
    assert here == [0][: ranks.is_first]
    with pytest.raises(OSError, match="No such file or directory: '/nowhere/x'"):
        folder.prepare(lambda: os.mkdir("/nowhere/x"))


def save_one_row(group: Any) -> None:
    """Save a tied tensor with a single row, of which the second rank has nothing."""
    mesh = init_device_mesh("cpu", (2,))
    row = distribute_tensor(torch.ones(1, 3), mesh, [Shard(0)])
    folder = ShardedFolder(FOLDER / "row", group=group)
    folder.save(1, {"one": row, "other": row}, {"value": torch.ones(1)}, {})
    assert sorted(folder.load(1).adapted_state()) == ["one", "other"]


def measure(ranks: ProcessGroup) -> bool:
    group = distributed.new_group(backend="gloo")
    save_one_row(group)
    save_while_training(ranks, group)
    fail_on_one_rank(ranks, group)
    return True


if __name__ == "__main__":
    assert run_ranks(measure, 2) == [True, True]
