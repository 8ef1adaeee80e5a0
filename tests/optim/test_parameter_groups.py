"""Who decays, and who is a matrix for Muon."""

from collections.abc import Iterable
from typing import Any

import pytest
from torch import nn

from groundup.errors import ConfigError
from groundup.optim import decay_groups, muon_groups

BLOCK_MATRICES = {f"blocks.{i}.{part}.weight" for i in range(2) for part in ("up", "down")}
GAINS = {"blocks.0.attention_norm.weight", "blocks.1.attention_norm.weight", "final_norm.weight"}
EMBEDDING, HEAD = {"token_embedding.weight"}, {"lm_head.weight"}


def names(model: nn.Module, parameters: Iterable[nn.Parameter]) -> set[str]:
    by_id = {id(parameter): name for name, parameter in model.named_parameters()}
    return {by_id[id(parameter)] for parameter in parameters}


def described(model: nn.Module, groups: list[dict[str, Any]]) -> list[tuple[set[str], float]]:
    return [(names(model, group["params"]), group["weight_decay"]) for group in groups]


def test_linear_weights_decay_and_gains_and_embeddings_do_not(tiny_model: Any) -> None:
    model = tiny_model()
    assert described(model, decay_groups(model, weight_decay=0.1)) == [
        (BLOCK_MATRICES | HEAD, 0.1),
        (GAINS | EMBEDDING, 0.0),
    ]


def test_embeddings_decay_when_asked(tiny_model: Any) -> None:
    model = tiny_model()
    groups = decay_groups(model, weight_decay=0.1, decay_embeddings=True)
    assert described(model, groups) == [(BLOCK_MATRICES | HEAD | EMBEDDING, 0.1), (GAINS, 0.0)]


def test_a_tied_table_is_there_once_and_is_an_embedding(tiny_model: Any) -> None:
    model = tiny_model(tied=True)
    groups = decay_groups(model, weight_decay=0.1)
    assert described(model, groups) == [(BLOCK_MATRICES, 0.1), (GAINS | EMBEDDING, 0.0)]
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


def test_muon_gets_the_matrices_of_the_blocks(tiny_model: Any) -> None:
    model = tiny_model()
    groups = muon_groups(model, learning_rate=1e-3, muon_learning_rate=2e-3, weight_decay=0.1)
    assert described(model, groups) == [
        (BLOCK_MATRICES, 0.1),
        (HEAD, 0.1),
        (GAINS | EMBEDDING, 0.0),
    ]
    assert [group["kind"] for group in groups] == ["muon", "adamw", "adamw"]
    assert [group["lr"] for group in groups] == [2e-3, 1e-3, 1e-3]


def test_muon_shares_the_rate_and_drops_empty_groups(tiny_model: Any) -> None:
    model = tiny_model(tied=True)
    groups = muon_groups(model, learning_rate=1e-3, weight_decay=0.1)
    assert described(model, groups) == [(BLOCK_MATRICES, 0.1), (GAINS | EMBEDDING, 0.0)]
    assert [group["lr"] for group in groups] == [1e-3, 1e-3]


def test_names_are_found_inside_wrappers(tiny_model: Any) -> None:
    wrapped = nn.ModuleDict({"_orig_mod": tiny_model()})
    plain = muon_groups(wrapped["_orig_mod"], learning_rate=1e-3, weight_decay=0.1)
    groups = muon_groups(wrapped, learning_rate=1e-3, weight_decay=0.1)
    assert [len(group["params"]) for group in groups] == [len(group["params"]) for group in plain]


def test_frozen_parameters_stay_out(tiny_model: Any) -> None:
    model = tiny_model()
    model.blocks.requires_grad_(False)
    assert described(model, decay_groups(model, weight_decay=0.1)) == [
        (HEAD, 0.1),
        ({"final_norm.weight"} | EMBEDDING, 0.0),
    ]
    model.requires_grad_(False)
    with pytest.raises(ConfigError, match="TinyModel has no parameters that learn"):
        decay_groups(model, weight_decay=0.1)
