"""Build an optimizer from settings; parameter groups follow from names and shapes."""

import inspect
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer as AnyOptimizer

from groundup.errors import ConfigError
from groundup.optim.base import ForeignOptimizer, Optimizer
from groundup.optim.config import OPTIMIZERS, OptimizerConfig


def build_optimizer(
    model: nn.Module, config: OptimizerConfig, num_steps: float | None = None
) -> Optimizer:
    """Build the optimizer with its parameter groups. Its class receives the settings that match its
    arguments.

    num_steps: the length of the run, for `ema_fraction`.
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
        raise ConfigError(f"{config.name} does not support EMA: remove optimizer.ema_fraction")
    optimizer.average_decay = average_decay(config, num_steps)
    return optimizer


def average_decay(
    config: OptimizerConfig, length: float | None, delta: float = 1.0
) -> float | None:
    """The EMA decay of a step of length `delta` in a run of `length`; None without an EMA."""
    if config.ema_fraction is None:
        return None
    if length is None:
        raise ConfigError("ema_fraction is a fraction of the run: give its num_steps")
    return 1 - delta / max(delta, config.ema_fraction * length)


def decay_groups(
    model: nn.Module, weight_decay: float, embedding_weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Groups for AdamW: linear layers with `weight_decay`; the embedding table, where weight decay
    mostly shrinks rare tokens, with its own; norm gains without. A tied table counts as embedding.
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
    """Groups for Muon: all matrices except the embedding and the output layer, whose rows (one per
    token) have unrelated gradients; and the `decay_groups` of the rest for AdamW."""
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
    """Trainable parameters with their names; a tied one appears once."""
    named = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    if not named:
        raise ConfigError(f"{type(model).__name__} has no trainable parameters")
    return named


def set_learning_rates(optimizer: AnyOptimizer, config: OptimizerConfig, factor: float) -> float:
    """Set every group's learning rate to its peak times `factor`; return the first group's. Muon's
    AdamW groups and the groups of a custom optimizer have their own peaks."""
    for group in optimizer.param_groups:
        rate = group.get("initial_lr", _maximum(config, group.get("kind"))) * factor
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
    first = optimizer.param_groups[0]
    return float(first.get("initial_lr", config.learning_rate)) * factor


def _maximum(config: OptimizerConfig, kind: str | None) -> float:
    """The peak learning rate of a group; only Muon's groups have a kind."""
    return config.learning_rate * (config.adamw_learning_rate_factor if kind == "adamw" else 1.0)
