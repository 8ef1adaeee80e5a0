"""How weights begin: normal values, truncated."""

from __future__ import annotations

import math

import torch
from torch import Tensor


@torch.no_grad()
def truncated_normal_(weight: Tensor, std: float, limit: float) -> Tensor:
    """Fill in place with normal values of standard deviation `std`, none beyond ±`limit`.

    A uniform value u between Φ(-limit/std) and Φ(limit/std) becomes std·Φ⁻¹(u), where
    Φ(z) = (1 + erf(z / √2)) / 2: values beyond the limit are never sampled, so none is clipped.
    """
    if weight.is_meta:
        # There is nothing to fill, and torch would load its Python kernels to do so.
        return weight
    edge = math.erf(limit / std / math.sqrt(2.0))
    # Half precision has so few values near ±1 that the tails would become a single one.
    dtype = torch.promote_types(weight.dtype, torch.float32)
    values = torch.empty_like(weight, dtype=dtype).uniform_(-edge, edge)
    # A uniform value that rounds to ±1 would have no finite inverse.
    values.erfinv_().mul_(std * math.sqrt(2.0)).clamp_(-limit, limit)
    return weight.copy_(values)
