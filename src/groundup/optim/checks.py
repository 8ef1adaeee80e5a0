"""What every optimizer asks of its settings, with the value in the complaint."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from groundup.errors import ConfigError


def check_learning_rate(group: Mapping[str, Any]) -> None:
    """At least 0 and finite; a tensor, which only the device knows the value of, is trusted."""
    if isinstance(group["lr"], Tensor):
        return
    _check_number("lr, the learning rate,", group["lr"])
    if not 0 <= group["lr"] < math.inf:
        raise ConfigError(f"lr, the learning rate, must be at least 0; it is {group['lr']}")


def check_weight_decay(group: Mapping[str, Any]) -> None:
    _check_number("weight_decay", group["weight_decay"])
    if not 0 <= group["weight_decay"] < math.inf:
        raise ConfigError(f"weight_decay must be at least 0; it is {group['weight_decay']}")


def check_share(name: str, value: float) -> None:
    """A running average keeps this share of itself: from 0 up to, but not including, 1."""
    _check_number(name, value)
    if not 0 <= value < 1:
        raise ConfigError(f"{name} must be at least 0 and below 1; it is {value}")


def check_adamw_group(group: Mapping[str, Any]) -> None:
    check_learning_rate(group)
    check_weight_decay(group)
    betas = group["betas"]
    if not isinstance(betas, Sequence) or len(betas) != 2:
        raise ConfigError(f"betas are two numbers, such as (0.9, 0.95); they are {betas!r}")
    check_share("betas[0]", betas[0])
    check_share("betas[1]", betas[1])
    _check_number("eps", group["eps"])
    if not 0 < group["eps"] < math.inf:
        raise ConfigError(
            f"eps must be positive, for it keeps 0 / 0 out of weights whose gradient is 0; "
            f"it is {group['eps']}"
        )


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name} must be a number; it is {value!r}")
