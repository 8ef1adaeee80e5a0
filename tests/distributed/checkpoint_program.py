"""Two ranks save and load sharded checkpoints; what they find goes into a file."""

import dataclasses
import errno
import json
import os
import sys
from pathlib import Path
from typing import Any, Literal

import torch
from rank_program import run_ranks
from tiny_steps import difference, take_steps, tiny_model, weights
from torch import Tensor, distributed

from groundup.checkpoint import CheckpointFolder, restore_model, restore_optimizer
from groundup.checkpoint.record import FileEntry
from groundup.checkpoint.sharded import ShardedFolder, load_into
from groundup.distributed.process_group import ProcessGroup
from groundup.distributed.reduction import FastReduction
from groundup.distributed.sharding import shard
from groundup.optim import Muon
from groundup.optim.build import build_optimizer
from groundup.optim.config import OptimizerConfig

FOLDER = Path(sys.argv[1])


class Sharded:
    """A run on all ranks."""

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
        place = self.local.place_for(self.optimizer)
        state = load_into(folder.load(step), self.model.state_dict(), place)
        restore_optimizer(self.optimizer, state)


class Plain:
    """The same in one process."""

    def __init__(self) -> None:
        self.model = tiny_model(tie_embeddings=True)
        self.optimizer = build_optimizer(self.model, OptimizerConfig(ema_fraction=0.5), num_steps=9)

    def step_to(self, end: int, first: int) -> dict[str, Tensor]:
        take_steps(self.model, self.optimizer, FastReduction(), 4, first=first, end=end)
        return weights(self.model)

    def save(self, folder: CheckpointFolder, step: int) -> None:
        folder.save(step, self.model.state_dict(), self.optimizer.state_dict(), {"note": step})

    def load(self, folder: CheckpointFolder, step: int) -> None:
        checkpoint = folder.load(step)
        restore_model(self.model, checkpoint.adapted_state())
        restore_optimizer(self.optimizer, checkpoint.optimizer_state())


def save_while_training(ranks: ProcessGroup, group: Any) -> dict[str, Any]:
    folder = ShardedFolder(FOLDER / "sharded", keep_last=2, group=group)
    run = Sharded(ranks, "adamw")
    for step in (1, 2, 3):
        at_three = run.step_to(step, first=step - 1)
        run.save(folder, step, metric=0.5 if step == 1 else None)
    at_five = run.step_to(5, first=3)
    run.save(folder, 5)
    found = folder.load(3).adapted_state()
    result: dict[str, Any] = {
        "steps": folder.steps(),
        "best": folder.best().step,
        "state": folder.newest().state,
        "files": sorted(os.listdir(folder.path_of(5))),
        "saved exactly": difference(found, at_three) == 0,
        "still tied": found["lm_head.weight"] is found["token_embedding.weight"],
    }
    other = Sharded(ranks, "adamw")
    other.load(folder, 3)
    result["two to two"] = difference(other.step_to(5, first=3), at_five)
    plain = Plain()
    plain.load(folder, 3)
    result["two to one"] = difference(plain.step_to(5, first=3), at_five)
    copies = Sharded(ranks, "adamw", "hsdp")
    copies.load(folder, 3)
    result["to copies"] = difference(copies.step_to(5, first=3), at_five)
    if ranks.is_first:
        plain.save(CheckpointFolder(FOLDER / "plain"), 5)
    distributed.barrier()
    from_plain = Sharded(ranks, "adamw")
    from_plain.load(CheckpointFolder(FOLDER / "plain"), 5)
    expected, run_on = plain.step_to(7, first=5), from_plain.step_to(7, first=5)
    result["one to two"] = difference(run_on, expected)
    copies_folder = ShardedFolder(FOLDER / "copies", group=group)
    copies.save(copies_folder, 5)
    found = copies_folder.load(5).adapted_state()
    result["copies saved exactly"] = difference(found, weights(copies.model)) == 0
    return result


def fail_on_one_rank(ranks: ProcessGroup, group: Any) -> dict[str, Any]:
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
    message = ""
    try:
        run.save(folder, 2)
    except OSError as error:
        message = str(error)
    FileEntry.of = hash_file  # type: ignore[method-assign]
    left = sorted(os.listdir(folder.path))
    run.save(folder, 3)
    other = Sharded(ranks, "muon")
    other.load(folder, 3)
    resumed = difference(other.step_to(5, first=1), run.step_to(5, first=1))
    refused = ""
    try:
        folder.prepare(lambda: os.mkdir("/nowhere/x"))
    except OSError as error:
        refused = str(error)
    result = {"left": left, "after": folder.steps(), "resumed": resumed}
    return {**result, "messages": ranks.gather(message), "refused": ranks.gather(refused)}


def measure(ranks: ProcessGroup) -> Any:
    group = distributed.new_group(backend="gloo")
    return {
        "training": save_while_training(ranks, group),
        "failing": fail_on_one_rank(ranks, group),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    Path(sys.argv[2]).write_text(json.dumps(run_ranks(measure, 2)[0]))
