"""Which parameters an optimizer treats alike, told by their names and shapes."""

from __future__ import annotations

from typing import Any

from torch import nn

from groundup.errors import ConfigError


def decay_groups(
    model: nn.Module, *, weight_decay: float, embedding_weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Groups for AdamW: linear layers with `weight_decay`, the embedding table with its own (the
    rows of rare tokens mostly shrink by it), gains without: 1, not 0, is where they do nothing.

    A table that is the output layer too counts as an embedding.
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
    adamw_learning_rate: float,
    weight_decay: float,
    embedding_weight_decay: float = 0.0,
) -> list[dict[str, Any]]:
    """Groups for Muon: all matrices but the embedding and the output layer, and the `decay_groups`
    of the rest by AdamW.

    Those two have a row for each token, whose gradients have little to do with one another; mixing
    them by orthogonalization is not what Muon is for.
    """
    matrices = [
        parameter
        for name, parameter in _learning_parameters(model)
        if parameter.ndim == 2 and not {"blocks", "projection"}.isdisjoint(name.split("."))
    ]
    chosen = set(map(id, matrices))
    groups: list[dict[str, Any]] = [
        {"params": matrices, "kind": "muon", "lr": learning_rate, "weight_decay": weight_decay}
    ]
    for group in decay_groups(
        model, weight_decay=weight_decay, embedding_weight_decay=embedding_weight_decay
    ):
        others = [one for one in group["params"] if id(one) not in chosen]
        groups.append({**group, "params": others, "kind": "adamw", "lr": adamw_learning_rate})
    return [group for group in groups if group["params"]]


def _learning_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Names and parameters that want gradients; a tied one is there once, under its first name."""
    named = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    if not named:
        raise ConfigError(f"{type(model).__name__} has no parameters that learn")
    return named
