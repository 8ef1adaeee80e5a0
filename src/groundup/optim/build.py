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
from groundup.optim.schedules import (
    constant_schedule,
    cosine_schedule,
    linear_schedule,
    warmup_stable_decay_schedule,
)
from groundup.optim.sgd import SGD

_LAST_PART_OF_WSD = 0.2


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> Optimizer:
    """The optimizer over all parameters of the model that learn, in the groups they belong to."""
    if config.name == "sgd":
        return SGD([one for one in model.parameters() if one.requires_grad], config.learning_rate)
    if config.name == "muon":
        groups = muon_groups(
            model,
            learning_rate=config.learning_rate,
            muon_learning_rate=config.muon_learning_rate,
            weight_decay=config.weight_decay,
            decay_embeddings=config.decay_embeddings,
        )
        return Muon(
            groups,
            lr=config.learning_rate,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            betas=config.betas,
            eps=config.eps,
            num_orthogonalization_steps=config.orthogonalization_steps,
            kernels=config.kernels,
        )
    return AdamW(
        decay_groups(
            model, weight_decay=config.weight_decay, decay_embeddings=config.decay_embeddings
        ),
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        kernels=config.kernels,
    )


def learning_rate_at(
    step: int, schedule: ScheduleConfig, max_learning_rate: float, num_steps: int
) -> float:
    """The learning rate of step `step`, counted from 0, in a run of `num_steps`.

    The warm-up is read one step ahead, so that the first step is no step of rate 0 and the last of
    the warm-up has the full rate. Stages that a short run has no room for are cut off by its end.
    """
    if num_steps < 1:
        raise ConfigError(f"a run has at least 1 step; num_steps is {num_steps}")
    warmup = schedule.warmup_steps
    if step < warmup:
        return constant_schedule(step + 1, max_learning_rate, warmup)
    least = max_learning_rate * schedule.min_learning_rate_ratio
    if schedule.name == "constant":
        return constant_schedule(step, max_learning_rate, warmup)
    if schedule.name == "wsd":
        fall = schedule.decay_steps or round(_LAST_PART_OF_WSD * num_steps)
        start, end = max(warmup, num_steps - fall), max(warmup, num_steps)
        return warmup_stable_decay_schedule(step, max_learning_rate, least, warmup, start, end)
    fall = schedule.decay_steps or max(0, num_steps - warmup)
    if schedule.name == "cosine":
        return cosine_schedule(step, max_learning_rate, least, warmup, warmup + fall)
    return linear_schedule(step, max_learning_rate, least, warmup, warmup + fall)


def set_learning_rates(
    optimizer: AnyOptimizer,
    config: OptimizerConfig,
    schedule: ScheduleConfig,
    step: int,
    num_steps: int,
) -> float:
    """Give every group its rate for the step; returns the one of `config.learning_rate`.

    Matrices under Muon have their own greatest rate and follow the same schedule.
    """
    share = learning_rate_at(step, schedule, 1.0, num_steps)
    for group in optimizer.param_groups:
        greatest = config.learning_rate
        if group.get("kind") == "muon" and config.muon_learning_rate is not None:
            greatest = config.muon_learning_rate
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(greatest * share)
        else:
            group["lr"] = greatest * share
    return config.learning_rate * share
