"""Which parameters an optimizer treats alike, told by their names and shapes."""

from __future__ import annotations

from typing import Any

from torch import nn

from groundup.errors import ConfigError


def decay_groups(
    model: nn.Module, *, weight_decay: float, embedding_weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Groups for AdamW: one with weight decay and one without, and one for embeddings whose decay
    is neither.

    Linear layers and a table of values get weight decay. Norm gains do not: 1, not 0, is where they
    do nothing.

    model: whose parameters are grouped.   weight_decay: of linear layers.
    embedding_weight_decay: of the embedding table, whose rows of rare tokens mostly shrink by it. A
        table that is the output layer too counts as an embedding.
    """
    decaying: list[nn.Parameter] = []
    embeddings: list[nn.Parameter] = []
    staying: list[nn.Parameter] = []
    of_embeddings = {weight_decay: decaying, 0.0: staying}.get(embedding_weight_decay, embeddings)
    for name, parameter in _learning_parameters(model):
        if parameter.ndim < 2:
            staying.append(parameter)
        else:
            is_embedding = "token_embedding" in name.split(".")
            (of_embeddings if is_embedding else decaying).append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": decaying, "weight_decay": weight_decay},
        {"params": embeddings, "weight_decay": embedding_weight_decay},
        {"params": staying, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def muon_groups(
    model: nn.Module,
    *,
    learning_rate: float,
    muon_learning_rate: float | None = None,
    weight_decay: float,
    embedding_weight_decay: float = 0.0,
) -> list[dict[str, Any]]:
    """Groups for Muon: all matrices but tables and the output layer, and the `decay_groups` of the
    rest by AdamW.

    Embedding and output layer have a row for each token, whose gradients have little to do with
    one another; mixing them by orthogonalization is not what Muon is for.

    model: whose parameters are grouped.
    learning_rate: of the rest.
    muon_learning_rate: of the matrices; `learning_rate` by default.
    weight_decay: of the matrices, and of what decays among the rest.
    embedding_weight_decay: of the embedding table.
    """
    matrices = [
        parameter
        for name, parameter in _learning_parameters(model)
        if parameter.ndim == 2 and _is_matrix(name)
    ]
    chosen = set(map(id, matrices))
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
        for group in decay_groups(
            model, weight_decay=weight_decay, embedding_weight_decay=embedding_weight_decay
        )
    ]
    return [group for group in (muon, *others) if group["params"]]


def _is_matrix(name: str) -> bool:
    return not {"blocks", "projection"}.isdisjoint(name.split("."))


def _learning_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Names and parameters that want gradients; a tied one is there once, under its first name."""
    named = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    if not named:
        raise ConfigError(f"{type(model).__name__} has no parameters that learn")
    return named
