"""The embedding table."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from groundup.nn.initialization import truncated_normal_


class Embedding(nn.Module):
    """y = W[ids], with W of shape (num_embeddings, embedding_dim).

    W is initialized to a normal distribution with variance 1, truncated at ±3.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.weight = nn.Parameter(
            torch.empty(num_embeddings, embedding_dim, device=device, dtype=dtype)
        )
        truncated_normal_(self.weight, std=1.0, limit=3.0)

    def forward(self, ids: Int[Tensor, "..."]) -> Float[Tensor, "... embedding_dim"]:
        return self.weight[ids]
