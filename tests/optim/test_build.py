"""From settings to an optimizer: its parameter groups and Muon's matrices; clipping against torch;
and learning rate schedules."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from groundup.errors import ConfigError
from groundup.optim import (
    AdamW,
    Muon,
    OptimizerConfig,
    ScheduleConfig,
    build_optimizer,
    cosine_schedule,
)
from groundup.optim.build import decay_groups, muon_groups, set_learning_rates
from groundup.optim.clipping import clip_gradients, clip_scale, gradient_norm
from groundup.optim.schedules import learning_rate_factor

PARTS = [f"attention.{name}" for name in ("query", "key", "value", "output")]
PARTS += [f"feed_forward.{name}" for name in ("gate", "up", "down")]
MATRICES = {f"blocks.{i}.{part}.weight" for i in range(2) for part in PARTS}
NORMS = [f"blocks.{i}.{part}_norm" for i in range(2) for part in ("attention", "feed_forward")]
GAINS = {f"{name}.weight" for name in (*NORMS, "final_norm")}
EMBEDDING, HEAD = {"token_embedding.weight"}, {"lm_head.weight"}


def described(model: nn.Module, groups: list[dict[str, Any]]) -> list[tuple[set[str], float]]:
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    return [({name_of[id(one)] for one in g["params"]}, g["weight_decay"]) for g in groups]


@pytest.mark.parametrize("tied", [False, True])
def test_each_kind_of_parameter_has_its_decay_and_rate(tied: bool, tiny_model: Any) -> None:
    # A tied table occurs once, as an embedding; there are no empty groups.
    model, head = tiny_model(tied=tied), set[str]() if tied else HEAD
    found = described(model, decay_groups(model, weight_decay=0.1))
    assert found == [(MATRICES | head, 0.1), (GAINS | EMBEDDING, 0.0)]
    own = build_optimizer(model, OptimizerConfig(embedding_weight_decay=0.01)).param_groups
    expected = [(MATRICES | head, 0.1), (GAINS, 0.0), (EMBEDDING, 0.01)]
    assert described(model, own) == expected
    groups = muon_groups(model, 2e-3, 1e-3, 0.1)
    rest = [(GAINS | EMBEDDING, 0.0)] if tied else [(HEAD, 0.1), (GAINS | EMBEDDING, 0.0)]
    assert described(model, groups) == [(MATRICES, 0.1), *rest]
    kinds = [("muon", 2e-3), *[("adamw", 1e-3)] * len(rest)]
    assert [(group["kind"], group["lr"]) for group in groups] == kinds


def test_frozen_parameters_are_excluded(tiny_model: Any) -> None:
    model = tiny_model()
    model.blocks.requires_grad_(False)
    expected = [(HEAD, 0.1), ({"final_norm.weight"} | EMBEDDING, 0.0)]
    assert described(model, decay_groups(model, weight_decay=0.1)) == expected
    model.requires_grad_(False)
    with pytest.raises(ConfigError, match="TransformerLM has no trainable parameters"):
        decay_groups(model, weight_decay=0.1)


def test_settings_reach_the_optimizer(tiny_model: Any) -> None:
    rates: Any = {"learning_rate": 0.5, "adamw_learning_rate_factor": 3.0, "momentum": 0.7}
    rest: Any = {"betas": (0.1, 0.2), "eps": 1e-5, "weight_decay": 0.3}
    config = OptimizerConfig(name="muon", **rates, **rest)
    optimizer = build_optimizer(tiny_model(), config)
    assert isinstance(optimizer, Muon)
    matrices, head, others = optimizer.param_groups
    assert (matrices["lr"], matrices["momentum"], matrices["weight_decay"]) == (0.5, 0.7, 0.3)
    assert (head["lr"], head["betas"], head["eps"]) == (1.5, (0.1, 0.2), 1e-5)
    assert (head["weight_decay"], others["weight_decay"]) == (0.3, 0.0)
    plain = build_optimizer(tiny_model(), config.model_copy(update={"name": "adamw"}))
    assert isinstance(plain, AdamW)
    assert plain.defaults["betas"] == (0.1, 0.2)
    with pytest.raises(ConfigError, match="betas"):
        OptimizerConfig(betas=(0.9, 1.0))


def parameters(
    dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> list[Tensor]:
    torch.manual_seed(0)
    made = []
    for shape in [(3, 4), (5,), (), (2, 1, 3)]:
        parameter = torch.randn(shape, dtype=dtype, device=device, requires_grad=True)
        parameter.grad = torch.randn_like(parameter)
        made.append(parameter)
    made.append(torch.randn(2, device=device, requires_grad=True))
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("max_norm", [1e-3, 1.0, 1e3])
def test_clipping_equals_torch(dtype: torch.dtype, max_norm: float, device: torch.device) -> None:
    ours, theirs = parameters(dtype, device), parameters(dtype, device)
    scale = clip_scale(gradient_norm(ours), max_norm)
    before = [one.grad.clone() for one in ours if one.grad is not None]
    norm = clip_gradients(ours, max_norm)
    expected = torch.nn.utils.clip_grad_norm_(theirs, max_norm)
    torch.testing.assert_close(norm, expected)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    assert ours[-1].grad is None
    # Clipping multiplies by the scale, exactly 1 below the maximum norm.
    clipped = [one.grad for one in ours if one.grad is not None]
    assert all(torch.equal(a, b * scale) for a, b in zip(clipped, before, strict=True))
    assert (scale == 1) == (max_norm == 1e3)


def test_the_norm_includes_all_dtypes() -> None:
    first = torch.zeros(2, dtype=torch.float64)
    first.grad = torch.tensor([3.0, 0.0], dtype=torch.float64)
    second = torch.zeros(1, dtype=torch.bfloat16)
    second.grad = torch.tensor([4.0], dtype=torch.bfloat16)
    norm = clip_gradients([first, second], 1.0)
    assert norm.dtype == torch.float64
    assert norm.item() == 5.0
    assert first.grad[0].item() == pytest.approx(0.6, rel=1e-6)
    assert second.grad.dtype == torch.bfloat16


def test_without_gradients_the_norm_is_zero_and_invalid_bounds_are_rejected() -> None:
    assert clip_gradients([torch.zeros(3, requires_grad=True)], 1.0).item() == 0.0
    assert gradient_norm(iter([])).item() == 0.0
    for max_norm in (0.0, -1.0, float("nan")):
        with pytest.raises(ConfigError, match=f"max_norm.*{max_norm}"):
            clip_gradients(parameters(), max_norm)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({"name": "constant", "warmup_steps": 4}, [0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1, 1]),
        (
            {"name": "linear", "warmup_steps": 2, "min_learning_rate_ratio": 0.2},
            [0.5, 1, 1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3],
        ),
        (
            {"name": "linear", "warmup_steps": 2, "min_learning_rate_ratio": 0.5, "decay_steps": 5},
            [0.5, 1, 1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.5, 0.5],
        ),
        (
            {"name": "wsd", "warmup_steps": 1, "min_learning_rate_ratio": 0},
            [1, 1, 1, 1, 1, 1, 1, 1, 1, 0.5],
        ),
        (
            {"name": "wsd", "decay_steps": 5, "min_learning_rate_ratio": 0},
            [1, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2],
        ),
        (
            {"name": "wsd", "warmup_steps": 4, "decay_steps": 8, "min_learning_rate_ratio": 0},
            [0.25, 0.5, 0.75, 1, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6],
        ),
        ({"name": "cosine", "warmup_steps": 20}, [step / 20 for step in range(1, 11)]),
        (
            {"name": "cosine", "min_learning_rate_ratio": 0.2},
            [0.6 + 0.4 * math.cos(math.pi * step / 10) for step in range(10)],
        ),
    ],
)
def test_rates_of_a_run_of_ten_steps(schedule: dict[str, Any], expected: list[float]) -> None:
    config = ScheduleConfig(**schedule)
    rates = [learning_rate_factor(config, step, 1, 10) for step in range(10)]
    assert rates == pytest.approx(expected)
    # The same as fractions of the steps and of the time.
    fractions = {
        name: value / 10
        for name, value in schedule.items()
        if name.endswith("_steps") and value < 10
    }
    if len(fractions) == sum(name.endswith("_steps") for name in schedule):
        others = {name: value for name, value in schedule.items() if not name.endswith("_steps")}
        config = ScheduleConfig(**others, **fractions)
        for length in (10, 1.0):
            delta = length / 10
            found = [learning_rate_factor(config, i * delta, delta, length) for i in range(10)]
            assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("step", "expected"),
    [(0, 0.0), (1, 1 / 7), (6, 6 / 7), (7, 1.0), (14, 0.55), (21, 0.1), (22, 0.1), (10_000, 0.1)],
)
def test_cosine_matches_manual_values(step: int, expected: float) -> None:
    assert cosine_schedule(step, 1.0, 0.1, 7, 21) == pytest.approx(expected)
    # The maximum is reached exactly.
    low, high = 1.4929753047466368, 5.55052136778795
    assert low + (high - low) < high
    assert cosine_schedule(0, high, low, 0, 10) == cosine_schedule(4, high, low, 4, 4) == high


def test_inconsistent_settings_are_named() -> None:
    rates = [(0.1, 1.0), (1.0, -0.1), (math.nan, 0.1), (math.inf, 0.1)]
    for arguments in [
        (-1, 1.0, 0.1, 1, 2), (0, 1.0, 0.1, -3, 2), (0, 1.0, 0.1, 5, 4),
        *((0, *pair, 1, 4) for pair in rates),
    ]:  # fmt: skip
        with pytest.raises(ConfigError, match=f"got {arguments[0]}"):
            cosine_schedule(*arguments)


def test_the_default_decay_of_wsd_has_whole_steps() -> None:
    # 2 of 8 steps, not 1.6.
    assert learning_rate_factor(ScheduleConfig(name="wsd"), 7, 1, 8) == pytest.approx(0.55)


def test_every_group_scales_its_own_rate_by_the_schedule(tiny_model: Any) -> None:
    config = OptimizerConfig(name="muon", learning_rate=0.1, adamw_learning_rate_factor=3.0)
    optimizer = build_optimizer(tiny_model(), config)
    optimizer.param_groups[1]["lr"] = held = torch.tensor(0.0)
    assert set_learning_rates(optimizer, config, 0.5) == pytest.approx(0.05)
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    assert rates == pytest.approx([0.05, 0.15, 0.15])
    assert optimizer.param_groups[1]["lr"] is held
