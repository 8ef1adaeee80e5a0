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

    def visible(
        self,
        token_positions: Int[Tensor, "rows seq"],
        starts: Int[Tensor, "rows seq"] | None = None,
    ) -> Bool[Tensor, "rows 1 seq keys"]:
        """Which keys a query may see: those from its start up to its own position."""
        indices = torch.arange(self.keys.shape[2], device=token_positions.device)
        seen = indices <= token_positions[:, None, :, None]
        return seen if starts is None else seen & (indices >= starts[:, None, :, None])


class KVCache:
    """keys and values of shape (layers, rows, kv_heads, max_seq_len, d_head), zero at first, and
    where the document of each position starts, for models that keep documents apart."""

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
        self.starts = torch.zeros(num_rows, max_seq_len, dtype=torch.int64, device=device)

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
        parts = self.keys[:, first:stop], self.values[:, first:stop], self.starts[first:stop]
        return self._view(*parts)

    def up_to(self, num_positions: int) -> KVCache:
        """A view of the first positions: attention then looks at no key beyond them."""
        keys, values = self.keys[..., :num_positions, :], self.values[..., :num_positions, :]
        return self._view(keys, values, self.starts[:, :num_positions])

    def copy(self, source: int, target: int) -> None:
        """Let row `target` hold the sequence of row `source`."""
        if source != target:
            self.keys[:, target] = self.keys[:, source]
            self.values[:, target] = self.values[:, source]
            self.starts[target] = self.starts[source]

    def find_starts(
        self, is_first: Bool[Tensor, "rows seq"], token_positions: Int[Tensor, "rows seq"]
    ) -> Int[Tensor, "rows seq"]:
        """Where the documents of new tokens start, of which some are the first, at positions that
        follow each other."""
        rows = torch.arange(len(is_first), device=is_first.device)[:, None]
        first = token_positions[:, :1]
        before = torch.where(first > 0, self.starts[rows, (first - 1).clamp(min=0)], 0)
        new = torch.where(is_first, token_positions, 0).cummax(-1).values
        self.starts[rows, token_positions] = starts = torch.maximum(new, before)
        return starts

    def _view(self, keys: Tensor, values: Tensor, starts: Tensor) -> KVCache:
        view = KVCache.__new__(KVCache)
        view.keys, view.values, view.starts = keys, values, starts
        return view
