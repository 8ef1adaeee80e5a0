"""save_checkpoint and load_checkpoint: all optimizers, paths and streams, error messages."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

import groundup.optim
from groundup.checkpoint import load_checkpoint, restore_optimizer, save_checkpoint
from groundup.errors import CheckpointError

Parameters = Any
MakeOptimizer = Callable[[Parameters], torch.optim.Optimizer]


class Net(nn.Module):
    def __init__(self, width: int = 6, tied: bool = False) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, width), nn.BatchNorm1d(width)
        self.second, self.third = nn.Linear(width, 4), nn.Linear(width, 4)
        if tied:
            self.third.weight = self.second.weight

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.first(x)).tanh()
        return self.second(hidden) * self.third(hidden)


OPTIMIZERS: dict[str, MakeOptimizer] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.8, 0.95)),
    "AdamW in groups": lambda p: torch.optim.AdamW(
        [{"params": p[:3], "weight_decay": 0.5}, {"params": p[3:]}], amsgrad=True
    ),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "own AdamW": lambda p: groundup.optim.AdamW(p, lr=0.01),
}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, count: int) -> None:
    for step in range(first, first + count):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def make(kind: str, seed: int = 0, **options: Any) -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Net(**options)
    parameters = list(model.parameters())
    return model, OPTIMIZERS[kind](parameters)


def all_bits(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    def bits(value: Tensor) -> Any:
        flat = value.detach().contiguous().reshape(-1)
        return value.dtype, tuple(value.shape), bytes(flat.view(torch.uint8).numpy())

    return tree_map_only(Tensor, bits, [dict(model.state_dict()), optimizer.state_dict()])


@pytest.mark.parametrize(
    ("kind", "tied", "num_steps"),
    [*((kind, False, 3) for kind in OPTIMIZERS), ("AdamW", True, 3), ("AdamW", False, 0)],
)
def test_resuming_from_a_file_is_bitwise_exact(
    tmp_path: Path, kind: str, tied: bool, num_steps: int
) -> None:
    model, optimizer = make(kind, tied=tied)
    train(model, optimizer, 0, num_steps)
    save_checkpoint(model, optimizer, num_steps, str(tmp_path / "c"))
    saved = all_bits(model, optimizer)
    train(model, optimizer, num_steps, 3)

    other, other_optimizer = make(kind, seed=1, tied=tied)
    train(other, other_optimizer, 90, 1)
    assert load_checkpoint(tmp_path / "c", other, other_optimizer) == num_steps
    assert all_bits(other, other_optimizer) == saved
    train(other, other_optimizer, num_steps, 3)
    assert all_bits(other, other_optimizer) == all_bits(model, optimizer)
    assert (other.second.weight is other.third.weight) == tied


def test_float32_averages_of_bfloat16_weights_are_not_rounded(tmp_path: Path) -> None:
    model, optimizer = make("AdamW")
    train(model, optimizer, 0, 2)
    averages = {p: copy.deepcopy(state) for p, state in optimizer.state.items()}
    model.bfloat16()
    for parameter, state in averages.items():
        optimizer.state[parameter] = {**state, "count": torch.tensor(7)}
    saved = all_bits(model, optimizer)
    save_checkpoint(model, optimizer, 2, tmp_path / "c")
    load_checkpoint(tmp_path / "c", model, optimizer)
    assert all_bits(model, optimizer) == saved


def test_streams_are_used_from_their_position(tmp_path: Path) -> None:
    model, optimizer = make("SGD with momentum")
    train(model, optimizer, 0, 1)
    # A compiled and an uncompiled model can read each other's files.
    compiled = torch.compile(model, backend="eager")
    with open(tmp_path / "c", "wb") as out:
        out.write(b"before")
        save_checkpoint(cast(nn.Module, compiled), optimizer, 5, out)
    other, other_optimizer = make("SGD with momentum", seed=1)
    with open(tmp_path / "c", "rb") as src:
        assert src.read(6) == b"before"
        assert load_checkpoint(src, other, other_optimizer) == 5
        assert all_bits(other, other_optimizer) == all_bits(model, optimizer)
        with pytest.raises(CheckpointError, match="seek"):
            load_checkpoint(src, model, optimizer)


def one_layer() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(6, 4)
    return model, torch.optim.AdamW(model.parameters())


def backwards() -> tuple[nn.Module, torch.optim.Optimizer]:
    model, _ = make("AdamW")
    return model, OPTIMIZERS["AdamW"](list(model.parameters())[::-1])


@pytest.mark.parametrize(
    ("build", "noun"),
    [
        (lambda: make("AdamW", width=7), r"first\.weight \(\(6, 4\) instead of \(7, 4\)\)"),
        (one_layer, r"\bweight \(missing instead of .* norm\.bias \(\(6,\) instead of nothing\)"),
        (lambda: make("AdamW in groups"), r"groups of \[8\] parameters, but this one of \[3, 5\]"),
        (lambda: make("SGD with momentum"), "SGD"),
        (backwards, "same order"),
    ],
)
def test_mismatched_checkpoints_change_nothing(tmp_path: Path, build: Any, noun: str) -> None:
    model, optimizer = make("AdamW")
    train(model, optimizer, 0, 1)
    save_checkpoint(model, optimizer, 1, tmp_path / "c")
    other, other_optimizer = build()
    before = all_bits(other, other_optimizer)
    with pytest.raises(CheckpointError, match=noun):
        load_checkpoint(tmp_path / "c", other, other_optimizer)
    assert all_bits(other, other_optimizer) == before


def test_missing_options_keep_their_values_and_damaged_ones_raise() -> None:
    _, optimizer = make("AdamW")
    state = optimizer.state_dict()
    del state["param_groups"][0]["amsgrad"]
    restore_optimizer(optimizer, state)
    assert optimizer.param_groups[0]["amsgrad"] is False
    wrong: Any
    for wrong in (None, {}, {"state": {}, "param_groups": [3]}, {**state, "state": {0: 5}}):
        with pytest.raises(CheckpointError, match="optimizer state"):
            restore_optimizer(optimizer, wrong)
    with pytest.raises(CheckpointError, match="--from"):
        restore_optimizer(optimizer, {"state": {}, "param_groups": []})
