"""Gradient clipping without device synchronization."""

from collections.abc import Iterable

import torch
from torch import Tensor

from groundup.errors import ConfigError

_EPS = 1e-6


@torch.no_grad()
def clip_gradients(parameters: Tensor | Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale all gradients in place so that their common L2 norm is at most `max_norm`:

        g <- g · min(1, max_norm / (‖g‖ + 1e-6))

    Returns ‖g‖ before clipping. Parameters without a gradient are skipped.
    """
    gradients = _gradients(parameters)
    norm = _norm(gradients)
    scale = clip_scale(norm, max_norm)
    if gradients:
        torch._foreach_mul_(gradients, scale)
    return norm


@torch.no_grad()
def gradient_norm(parameters: Tensor | Iterable[Tensor]) -> Tensor:
    """‖g‖, the L2 norm of all gradients as one vector, in float32 or better."""
    return _norm(_gradients(parameters))


def clip_scale(norm: Tensor, max_norm: float) -> Tensor:
    """min(1, max_norm / (norm + 1e-6)), the factor of `clip_gradients`.

    Passing it to our optimizers as `step(gradient_scale=…)` saves a pass over the gradients.
    """
    if not max_norm > 0:
        raise ConfigError(f"max_norm must be positive, got {max_norm}")
    return (max_norm / (norm + _EPS)).clamp(max=1.0)


def _gradients(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    many = [parameters] if isinstance(parameters, Tensor) else parameters
    return [parameter.grad for parameter in many if parameter.grad is not None]


def _norm(gradients: list[Tensor]) -> Tensor:
    if not gradients:
        return torch.zeros(())
    has_doubles = any(gradient.dtype == torch.float64 for gradient in gradients)
    dtype = torch.float64 if has_doubles else torch.float32
    return torch.stack(torch._foreach_norm(gradients, 2, dtype=dtype)).square().sum().sqrt()
