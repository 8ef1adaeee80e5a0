"""The two row orders of rotated heads: ours turns neighbours, Llama's turns halves."""

from __future__ import annotations

from einops import rearrange
from torch import Tensor


def permute_rotation_rows(weight: Tensor, num_heads: int) -> Tensor:
    """Reorder the rows of every head from pairs (2k, 2k+1) to pairs (k, k + d_head/2).

    Queries and keys are reordered alike, so their products stay what they were. A vector of
    d_head gains, shared by the heads, is a weight of one head.
    """
    return rearrange(
        weight, "(heads pair part) ... -> (heads part pair) ...", heads=num_heads, part=2
    )


def restore_rotation_rows(weight: Tensor, num_heads: int) -> Tensor:
    """The inverse: from pairs (k, k + d_head/2) to pairs (2k, 2k+1)."""
    return rearrange(
        weight, "(heads part pair) ... -> (heads pair part) ...", heads=num_heads, part=2
    )
