"""An optimizer and its learning rates, as the settings say; which parameters it treats alike is
told by their names and shapes."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer as AnyOptimizer

from groundup.errors import ConfigError
from groundup.optim.base import Optimizer
from groundup.optim.config import OPTIMIZERS, OptimizerConfig
from groundup.optim.foreign import ForeignOptimizer


def build_optimizer(
    model: nn.Module, config: OptimizerConfig, num_steps: float | None = None
) -> Optimizer:
    """The optimizer over all parameters of the model that learn, in the groups they belong to; its
    class gets those settings that its arguments name.

    num_steps: the length of the run, which `ema_fraction` is a fraction of.
    """
    kind = OPTIMIZERS[config.name]()
    options = {name: one for name, one in config if name in inspect.signature(kind).parameters}
    groups: list[Any] = [one for _, one in _learning_parameters(model)]
    decays = config.weight_decay, config.embedding_weight_decay or 0.0
    if getattr(kind, "divides_matrices", False):
        rates = config.learning_rate, _maximum(config, "adamw")
        groups = muon_groups(model, *rates, *decays)
    elif "weight_decay" in options:
        groups = decay_groups(model, *decays)
    made = kind(groups, lr=config.learning_rate, **options)
    optimizer: Optimizer = made if isinstance(made, Optimizer) else ForeignOptimizer(made)
    if optimizer is not made and config.ema_fraction is not None:
        raise ConfigError(f"{config.name} supports no EMA: set optimizer.ema_fraction to None")
    optimizer.average_decay = average_decay(config, num_steps)
    return optimizer


def average_decay(
    config: OptimizerConfig, length: float | None, delta: float = 1.0
) -> float | None:
    """What the averages of the weights keep at a step; None without them.

    length: of the run, in the unit of `delta`, how far the step goes.
    """
    if config.ema_fraction is None:
        return None
    if length is None:
        raise ConfigError("ema_fraction is a fraction of the run: give its num_steps")
    return 1 - delta / max(delta, config.ema_fraction * length)


def decay_groups(
    model: nn.Module, weight_decay: float, embedding_weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Groups for AdamW: linear layers with `weight_decay`; the embedding table, whose rows of rare
    tokens mostly shrink by it, with its own; gains, which do nothing at 1 and not at 0, without.

    A table that is the output layer too counts as an embedding.
    """
    kinds: dict[float, list[nn.Parameter]] = {weight_decay: [], 0.0: []}
    for name, parameter in _learning_parameters(model):
        is_embedding = "token_embedding" in name.split(".")
        decay = embedding_weight_decay if is_embedding else weight_decay
        kinds.setdefault(decay if parameter.ndim > 1 else 0.0, []).append(parameter)
    return [{"params": params, "weight_decay": decay} for decay, params in kinds.items() if params]


def muon_groups(
    model: nn.Module,
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
    common = {"lr": learning_rate, "weight_decay": weight_decay}
    groups: list[dict[str, Any]] = [{"params": matrices, "kind": "muon", **common}]
    for group in decay_groups(model, weight_decay, embedding_weight_decay):
        others = [one for one in group["params"] if id(one) not in chosen]
        groups.append({**group, "params": others, "kind": "adamw", "lr": adamw_learning_rate})
    return [group for group in groups if group["params"]]


def _learning_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Names and parameters that want gradients; a tied one is there once, under its first name."""
    named = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    if not named:
        raise ConfigError(f"{type(model).__name__} has no trainable parameters")
    return named


def set_learning_rates(optimizer: AnyOptimizer, config: OptimizerConfig, factor: float) -> float:
    """Give every group its maximum learning rate times `factor`; returns `learning_rate` times it.

    Under Muon what AdamW moves has a maximum of its own, and follows the same schedule. So has each
    group of an optimizer of a program's own; the first one's rate is the result.
    """
    for group in optimizer.param_groups:
        rate = group.get("initial_lr", _maximum(config, group.get("kind"))) * factor
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
    first = optimizer.param_groups[0]
    return float(first.get("initial_lr", config.learning_rate)) * factor


def _maximum(config: OptimizerConfig, kind: str | None) -> float:
    """The maximum learning rate of a group of this kind; only Muon's groups have one."""
    return config.learning_rate * (config.adamw_learning_rate_factor if kind == "adamw" else 1.0)
