"""From settings to an optimizer: which one, who gets weight decay, and who is a matrix for Muon."""

from typing import Any

import pytest
from torch import nn

from groundup.errors import ConfigError
from groundup.optim import AdamW, Muon, OptimizerConfig, build_optimizer
from groundup.optim.build import decay_groups, muon_groups

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
def test_each_parameter_gets_the_decay_and_the_rate_of_its_kind(
    tied: bool, tiny_model: Any
) -> None:
    # A tied table is there once and is an embedding; there are no empty groups.
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


def test_frozen_parameters_stay_out(tiny_model: Any) -> None:
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
