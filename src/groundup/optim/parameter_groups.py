"""Which parameters an optimizer treats alike, told by their names and shapes."""

from __future__ import annotations

from typing import Any

from torch import nn

from groundup.errors import ConfigError


def decay_groups(
    model: nn.Module, *, weight_decay: float, decay_embeddings: bool = False
) -> list[dict[str, Any]]:
    """Groups for AdamW: one that decays and one that does not.

    The weights of linear layers decay. Norm gains do not: 1, not 0, is where they do nothing. The
    embedding table does not unless `decay_embeddings` says so: rows of rare tokens would mostly
    shrink. A table that is the output layer too counts as an embedding.
    """
    decaying: list[nn.Parameter] = []
    staying: list[nn.Parameter] = []
    for name, parameter in _learning_parameters(model):
        stays = parameter.ndim < 2 or (_is_embedding(name) and not decay_embeddings)
        (staying if stays else decaying).append(parameter)
    return _without_empty(
        [
            {"params": decaying, "weight_decay": weight_decay},
            {"params": staying, "weight_decay": 0.0},
        ]
    )


def muon_groups(
    model: nn.Module,
    *,
    learning_rate: float,
    muon_learning_rate: float | None = None,
    weight_decay: float,
    decay_embeddings: bool = False,
) -> list[dict[str, Any]]:
    """Groups for Muon: the matrices of the blocks by Muon, the `decay_groups` of the rest by AdamW.

    Embedding and output layer have a row for each token, whose gradients have little to do with
    one another; mixing them by orthogonalization is not what Muon is for.
    """
    matrices = [
        parameter
        for name, parameter in _learning_parameters(model)
        if _is_of_block(name, parameter)
    ]
    chosen = set(map(id, matrices))
    rest = decay_groups(model, weight_decay=weight_decay, decay_embeddings=decay_embeddings)
    muon = {
        "params": matrices,
        "kind": "muon",
        "lr": learning_rate if muon_learning_rate is None else muon_learning_rate,
        "weight_decay": weight_decay,
    }
    others = [
        {
            "params": [one for one in group["params"] if id(one) not in chosen],
            "kind": "adamw",
            "lr": learning_rate,
            "weight_decay": group["weight_decay"],
        }
        for group in rest
    ]
    return _without_empty([muon, *others])


def _learning_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Names and parameters that want gradients; a tied one is there once, under its first name."""
    named = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    if not named:
        raise ConfigError(f"{type(model).__name__} has no parameters that learn")
    return named


def _is_embedding(name: str) -> bool:
    return "token_embedding" in name.split(".")


def _is_of_block(name: str, parameter: nn.Parameter) -> bool:
    return parameter.ndim == 2 and "blocks" in name.split(".")


def _without_empty(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [group for group in groups if group["params"]]
