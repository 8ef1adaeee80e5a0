"""The keys and values of sequences seen so far, so that a new token costs one token's work.

Allocated once and passed as an argument; who sits in which row is left to the caller.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class LayerCache:
    """One layer's keys and values: a row for each sequence."""

    keys: Float[Tensor, "rows kv_heads positions d_head"]
    values: Float[Tensor, "rows kv_heads positions d_head"]

    def write(
        self,
        keys: Float[Tensor, "rows kv_heads seq d_head"],
        values: Float[Tensor, "rows kv_heads seq d_head"],
        token_positions: Int[Tensor, "rows seq"],
    ) -> None:
        """Put each row's new keys and values at their `token_positions`."""
        rows = torch.arange(len(keys), device=keys.device)[:, None]
        # What two tensors around a slice index comes first: (rows, seq, kv_heads, d_head).
        self.keys[rows, :, token_positions] = keys.transpose(1, 2).to(self.keys.dtype)
        self.values[rows, :, token_positions] = values.transpose(1, 2).to(self.values.dtype)

    def visible(self, token_positions: Int[Tensor, "rows seq"]) -> Bool[Tensor, "rows 1 seq keys"]:
        """Which keys a query may see: those at its own position and before."""
        indices = torch.arange(self.keys.shape[2], device=token_positions.device)
        return indices <= token_positions[:, None, :, None]


class KVCache:
    """keys and values of shape (layers, rows, kv_heads, max_seq_len, d_head), zero at first."""

    def __init__(
        self,
        num_layers: int,
        num_rows: int,
        num_kv_heads: int,
        max_seq_len: int,
        d_head: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        shape = (num_layers, num_rows, num_kv_heads, max_seq_len, d_head)
        # Zeros, since a masked value still enters a matmul, where garbage may be a NaN.
        self.keys: Tensor = torch.zeros(shape, device=device, dtype=dtype)
        self.values: Tensor = torch.zeros(shape, device=device, dtype=dtype)

    @property
    def num_rows(self) -> int:
        return self.keys.shape[1]

    @property
    def max_seq_len(self) -> int:
        return self.keys.shape[3]

    def layer(self, number: int) -> LayerCache:
        return LayerCache(self.keys[number], self.values[number])

    def rows(self, first: int, stop: int) -> KVCache:
        """A view of the rows from `first` to before `stop`."""
        return self._view(self.keys[:, first:stop], self.values[:, first:stop])

    def up_to(self, num_positions: int) -> KVCache:
        """A view of the first positions: attention then looks at no key beyond them."""
        return self._view(self.keys[..., :num_positions, :], self.values[..., :num_positions, :])

    def copy(self, source: int, target: int) -> None:
        """Let row `target` hold the sequence of row `source`."""
        if source != target:
            self.keys[:, target] = self.keys[:, source]
            self.values[:, target] = self.values[:, source]

    def _view(self, keys: Tensor, values: Tensor) -> KVCache:
        view = KVCache.__new__(KVCache)
        view.keys, view.values = keys, values
        return view
