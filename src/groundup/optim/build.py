"""An optimizer and its learning rates, as the settings say."""

from __future__ import annotations

from torch import Tensor, nn
from torch.optim import Optimizer as AnyOptimizer

from groundup.errors import ConfigError
from groundup.optim.adamw import AdamW
from groundup.optim.base import Optimizer
from groundup.optim.config import OptimizerConfig, ScheduleConfig
from groundup.optim.muon import Muon
from groundup.optim.parameter_groups import decay_groups, muon_groups
from groundup.optim.schedules import learning_rate_at
from groundup.optim.sgd import SGD


def build_optimizer(
    model: nn.Module, config: OptimizerConfig, num_steps: int | None = None
) -> Optimizer:
    """The optimizer over all parameters of the model that learn, in the groups they belong to.

    config: its kind and settings.
    num_steps: the length of the run, which `average_over` is a fraction of.
    """
    optimizer = _build(model, config)
    optimizer.average_decay = average_decay(config, num_steps)
    return optimizer


def average_decay(config: OptimizerConfig, num_steps: int | None) -> float | None:
    """What the averages of the weights keep at a step of a run of this length; None without them.

    config, num_steps: as above.
    """
    if config.average_over is None:
        return None
    if num_steps is None:
        raise ConfigError("average_over is a fraction of the run: give its num_steps")
    return 1 - 1 / max(1.0, config.average_over * num_steps)


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


def set_learning_rates(
    optimizer: AnyOptimizer,
    config: OptimizerConfig,
    schedule: ScheduleConfig,
    step: int,
    num_steps: int,
) -> float:
    """Give every group its learning rate for the step; returns the one of `config.learning_rate`.

    optimizer: whose groups change.   schedule: what a step gets of the maximum of `config`.
    step: counted from 0, of `num_steps`.
    """
    fraction = learning_rate_at(step, schedule, 1.0, num_steps)
    for group in optimizer.param_groups:
        maximum = _maximum(config, group.get("kind"))
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(maximum * fraction)
        else:
            group["lr"] = maximum * fraction
    return config.learning_rate * fraction


def _maximum(config: OptimizerConfig, kind: str | None) -> float:
    """The maximum learning rate of a group of this kind; only Muon's groups have one."""
    return config.learning_rate * (config.adamw_learning_rate_factor if kind == "adamw" else 1.0)
