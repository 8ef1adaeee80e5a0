"""An optimizer and its learning rates, as the settings say."""

from __future__ import annotations

from torch import Tensor, nn
from torch.optim import Optimizer as AnyOptimizer

from groundup.errors import ConfigError
from groundup.optim.adamw import AdamW
from groundup.optim.base import Optimizer
from groundup.optim.config import OptimizerConfig
from groundup.optim.muon import Muon
from groundup.optim.parameter_groups import decay_groups, muon_groups
from groundup.optim.sgd import SGD


def build_optimizer(
    model: nn.Module, config: OptimizerConfig, num_steps: float | None = None
) -> Optimizer:
    """The optimizer over all parameters of the model that learn, in the groups they belong to.

    config: its kind and settings.
    num_steps: the length of the run, which `average_over` is a fraction of.
    """
    optimizer = _build(model, config)
    optimizer.average_decay = average_decay(config, num_steps)
    return optimizer


def average_decay(
    config: OptimizerConfig, length: float | None, delta: float = 1.0
) -> float | None:
    """What the averages of the weights keep at a step; None without them.

    length: of the run, in the unit of `delta`, how far the step goes.
    """
    if config.average_over is None:
        return None
    if length is None:
        raise ConfigError("average_over is a fraction of the run: give its num_steps")
    return 1 - delta / max(delta, config.average_over * length)


def _build(model: nn.Module, config: OptimizerConfig) -> Optimizer:
    decay = {
        "weight_decay": config.weight_decay,
        "embedding_weight_decay": config.embedding_weight_decay or 0.0,
    }
    if config.name == "sgd":
        return SGD([one for one in model.parameters() if one.requires_grad], config.learning_rate)
    if config.name == "adamw":
        return AdamW(decay_groups(model, **decay), config.learning_rate, config.betas, config.eps)
    return Muon(
        muon_groups(
            model,
            learning_rate=config.learning_rate,
            adamw_learning_rate=_maximum(config, "adamw"),
            **decay,
        ),
        momentum=config.momentum,
        betas=config.betas,
        eps=config.eps,
        normalize_rows=config.normalize_rows,
    )


def set_learning_rates(optimizer: AnyOptimizer, config: OptimizerConfig, factor: float) -> float:
    """Give every group its maximum learning rate times `factor`; returns `learning_rate` times it.

    Under Muon what AdamW moves has a maximum of its own, and follows the same schedule.
    """
    for group in optimizer.param_groups:
        rate = _maximum(config, group.get("kind")) * factor
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
    return config.learning_rate * factor


def _maximum(config: OptimizerConfig, kind: str | None) -> float:
    """The maximum learning rate of a group of this kind; only Muon's groups have one."""
    return config.learning_rate * (config.adamw_learning_rate_factor if kind == "adamw" else 1.0)
