"""From settings to an optimizer and its learning rates."""

import subprocess
import sys
from typing import Any

import pydantic
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import groundup.optim
from groundup.errors import ConfigError
from groundup.optim import (
    SGD,
    AdamW,
    Muon,
    OptimizerConfig,
    ScheduleConfig,
    build_optimizer,
    learning_rate_at,
    set_learning_rates,
)

SCHEDULES = st.builds(
    ScheduleConfig,
    name=st.sampled_from(["cosine", "linear", "constant", "wsd"]),
    warmup_steps=st.integers(0, 50),
    min_learning_rate_ratio=st.floats(0, 1),
    decay_steps=st.none() | st.integers(1, 80),
)


@pytest.mark.parametrize(("name", "kind"), [("adamw", AdamW), ("sgd", SGD), ("muon", Muon)])
def test_the_name_picks_the_optimizer_over_all_parameters(
    name: Any, kind: type, tiny_model: Any
) -> None:
    model = tiny_model()
    optimizer = build_optimizer(model, OptimizerConfig(name=name))
    assert type(optimizer) is kind
    held = [one for group in optimizer.param_groups for one in group["params"]]
    assert sorted(map(id, held)) == sorted(map(id, model.parameters()))


def test_settings_reach_the_optimizer(tiny_model: Any) -> None:
    config = OptimizerConfig(
        name="muon",
        learning_rate=0.5,
        muon_learning_rate=0.25,
        betas=(0.1, 0.2),
        eps=1e-5,
        weight_decay=0.3,
        momentum=0.7,
        orthogonalization_steps=3,
        kernels="reference",
    )
    optimizer = build_optimizer(tiny_model(), config)
    assert isinstance(optimizer, Muon)
    assert (optimizer.kernels, optimizer.num_orthogonalization_steps) == ("reference", 3)
    matrices, head, rest = optimizer.param_groups
    assert (matrices["lr"], matrices["momentum"], matrices["weight_decay"]) == (0.25, 0.7, 0.3)
    assert (head["lr"], head["betas"], head["eps"]) == (0.5, (0.1, 0.2), 1e-5)
    assert (head["weight_decay"], rest["weight_decay"]) == (0.3, 0.0)

    plain = build_optimizer(tiny_model(), config.model_copy(update={"name": "adamw"}))
    assert isinstance(plain, AdamW)
    assert (plain.kernels, plain.defaults["betas"]) == ("reference", (0.1, 0.2))
    decaying = build_optimizer(tiny_model(), OptimizerConfig(decay_embeddings=True))
    assert len(decaying.param_groups[0]["params"]) == 6


@given(SCHEDULES, st.integers(1, 60), st.floats(1e-6, 10))
def test_no_step_of_a_run_is_lost_and_none_is_too_large(
    schedule: ScheduleConfig, num_steps: int, rate: float
) -> None:
    rates = [learning_rate_at(step, schedule, rate, num_steps) for step in range(num_steps)]
    # The rate itself, to rounding: a minimum plus the way up to the rate may miss its last bit.
    top = pytest.approx(rate, rel=1e-12)
    assert all(0 <= one <= rate * (1 + 1e-12) for one in rates)
    assert rates[0] > 0
    if schedule.warmup_steps < num_steps:
        assert rates[schedule.warmup_steps] == top or schedule.decay_steps is not None
        assert max(rates) == top


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({"name": "constant", "warmup_steps": 4}, [0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1, 1]),
        (
            {"name": "linear", "warmup_steps": 2, "min_learning_rate_ratio": 0.2},
            [0.5, 1, 1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3],
        ),
        (
            {"name": "linear", "min_learning_rate_ratio": 0.5, "decay_steps": 5},
            [1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.5, 0.5, 0.5, 0.5],
        ),
        (
            {"name": "wsd", "warmup_steps": 1, "min_learning_rate_ratio": 0},
            [1, 1, 1, 1, 1, 1, 1, 1, 1, 0.5],
        ),
        (
            {"name": "wsd", "decay_steps": 5, "min_learning_rate_ratio": 0},
            [1, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2],
        ),
        ({"name": "cosine", "warmup_steps": 20}, [step / 20 for step in range(1, 11)]),
    ],
)
def test_rates_of_a_run_of_ten_steps(schedule: dict[str, Any], expected: list[float]) -> None:
    config = ScheduleConfig(**schedule)
    rates = [learning_rate_at(step, config, 1.0, 10) for step in range(10)]
    assert rates == pytest.approx(expected)


def test_a_cosine_run_ends_next_to_its_minimum() -> None:
    schedule = ScheduleConfig(name="cosine", warmup_steps=10, min_learning_rate_ratio=0.1)
    assert learning_rate_at(10, schedule, 2.0, 1010) == 2.0
    assert learning_rate_at(510, schedule, 2.0, 1010) == pytest.approx(1.1)
    assert learning_rate_at(1009, schedule, 2.0, 1010) == pytest.approx(0.2, rel=1e-4)
    assert learning_rate_at(5000, schedule, 2.0, 1010) == 0.2


def test_a_run_without_steps_is_an_error() -> None:
    with pytest.raises(ConfigError, match="num_steps is 0"):
        learning_rate_at(0, ScheduleConfig(), 1.0, 0)


def test_every_group_follows_the_schedule_from_its_own_rate(tiny_model: Any) -> None:
    config = OptimizerConfig(name="muon", learning_rate=0.1, muon_learning_rate=0.4)
    optimizer = build_optimizer(tiny_model(), config)
    optimizer.param_groups[1]["lr"] = held = torch.tensor(0.0)
    schedule = ScheduleConfig(name="linear", warmup_steps=4)
    assert set_learning_rates(optimizer, config, schedule, 1, 100) == pytest.approx(0.05)
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    assert rates == pytest.approx([0.2, 0.05, 0.05])
    assert optimizer.param_groups[1]["lr"] is held


@pytest.mark.parametrize(
    "values",
    [
        {"learning_rate": 0.0},
        {"learning_rate": float("inf")},
        {"betas": (0.9, 1.0)},
        {"eps": 0.0},
        {"weight_decay": -0.1},
        {"momentum": 1.0},
        {"orthogonalization_steps": 0},
        {"name": "adam"},
        {"lr": 1.0},
    ],
)
def test_optimizer_settings_have_bounds(values: dict[str, Any]) -> None:
    with pytest.raises(pydantic.ValidationError):
        OptimizerConfig(**values)


@pytest.mark.parametrize(
    "values",
    [{"warmup_steps": -1}, {"min_learning_rate_ratio": 1.1}, {"decay_steps": 0}, {"name": "step"}],
)
def test_schedule_settings_have_bounds(values: dict[str, Any]) -> None:
    with pytest.raises(pydantic.ValidationError):
        ScheduleConfig(**values)


def test_every_public_name_resolves() -> None:
    assert all(getattr(groundup.optim, name) is not None for name in groundup.optim.__all__)
    assert dir(groundup.optim) == sorted(groundup.optim.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Adam'"):
        groundup.optim.Adam  # noqa: B018


@pytest.mark.parametrize("name", ["config.OptimizerConfig", "schedules.cosine_schedule"])
def test_settings_and_schedules_cost_no_torch(name: str) -> None:
    module, attribute = name.split(".")
    script = (
        f"import sys; from groundup.optim.{module} import {attribute}; "
        f"from groundup.optim import {attribute}; sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
