"""What a block sees: the stream, and once more the embeddings that the stream began with."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


class InputMix(nn.Module):
    """y = a · x + b · first, with a and b learned; at first a = 1 and b = 0.

    What blocks add to the stream buries the embeddings; with b a deep block can still read which
    token it stands at.
    """

    def __init__(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 0.0], device=device, dtype=dtype))

    def forward(
        self, x: Float[Tensor, "... d_model"], first: Float[Tensor, "... d_model"]
    ) -> Float[Tensor, "... d_model"]:
        """x: the stream, as the blocks so far have left it.   first: the scaled embeddings."""
        return (self.weight[0] * x + self.weight[1] * first).to(x.dtype)
