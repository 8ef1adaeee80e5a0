"""Weight initialization: truncated normal."""

from __future__ import annotations

import math

import torch
from torch import Tensor


@torch.no_grad()
def truncated_normal_(weight: Tensor, std: float, limit: float) -> Tensor:
    """Fill in place from a normal distribution with standard deviation `std`, truncated at ±limit.

    A uniform value u between Φ(-limit/std) and Φ(limit/std) becomes std·Φ⁻¹(u), where
    Φ(z) = (1 + erf(z / √2)) / 2: values beyond the limit are never sampled, so none is clipped.
    """
    if weight.is_meta:
        # Nothing to fill, and torch would import its Python kernels to do so.
        return weight
    edge = math.erf(limit / std / math.sqrt(2.0))
    # Half precision has so few values near ±1 that the tails would collapse to one value.
    dtype = torch.promote_types(weight.dtype, torch.float32)
    values = torch.empty_like(weight, dtype=dtype).uniform_(-edge, edge)
    # A uniform value that rounds to ±1 has no finite inverse.
    values.erfinv_().mul_(std * math.sqrt(2.0)).clamp_(-limit, limit)
    return weight.copy_(values)
