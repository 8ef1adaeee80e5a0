"""The key/value cache of decoding: a new token costs one token's work.

Allocated once and passed as an argument; the caller decides which sequence occupies which row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class LayerCache:
    """One layer's keys and values, one row per sequence."""

    keys: Float[Tensor, "rows kv_heads positions d_head"]
    values: Float[Tensor, "rows kv_heads positions d_head"]

    def write(
        self,
        keys: Float[Tensor, "rows kv_heads seq d_head"],
        values: Float[Tensor, "rows kv_heads seq d_head"],
        token_positions: Int[Tensor, "rows seq"],
    ) -> None:
        """Store each row's new keys and values at their `token_positions`."""
        rows = torch.arange(len(keys), device=keys.device)[:, None]
        # Dimensions of two index tensors around a slice come first: (rows, seq, kv_heads, d_head).
        self.keys[rows, :, token_positions] = keys.transpose(1, 2).to(self.keys.dtype)
        self.values[rows, :, token_positions] = values.transpose(1, 2).to(self.values.dtype)

    def visible(
        self,
        token_positions: Int[Tensor, "rows seq"],
        document_starts: Int[Tensor, "rows seq"] | None = None,
    ) -> Bool[Tensor, "rows 1 seq keys"]:
        """Mask of the keys each query may attend to: from its start to its own position."""
        indices = torch.arange(self.keys.shape[2], device=token_positions.device)
        seen = indices <= token_positions[:, None, :, None]
        if document_starts is not None:
            seen = seen & (indices >= document_starts[:, None, :, None])
        return seen


class KVCache:
    """keys and values of shape (layers, rows, kv_heads, max_seq_len, d_head), initially zero, and
    the start of each position's document, for models with document masking."""

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
        # Zeros, because masked values still enter a matmul, where garbage may be NaN.
        self.keys: Tensor = torch.zeros(shape, device=device, dtype=dtype)
        self.values: Tensor = torch.zeros(shape, device=device, dtype=dtype)
        self.document_starts = torch.zeros(num_rows, max_seq_len, dtype=torch.int64, device=device)

    def layer(self, number: int) -> LayerCache:
        return LayerCache(self.keys[number], self.values[number])

    def rows(self, first: int, stop: int) -> KVCache:
        """A view of rows `first` to `stop` - 1."""
        starts = self.document_starts[first:stop]
        parts = self.keys[:, first:stop], self.values[:, first:stop], starts
        return self._view(*parts)

    def up_to(self, num_positions: int) -> KVCache:
        """A view of the first `num_positions` positions, to limit the keys attention reads."""
        keys, values = self.keys[..., :num_positions, :], self.values[..., :num_positions, :]
        return self._view(keys, values, self.document_starts[:, :num_positions])

    def with_room(self, num_positions: int) -> KVCache:
        """A copy with room for `num_positions` positions."""
        add = num_positions - self.keys.shape[3]
        keys, values = (functional.pad(one, (0, 0, 0, add)) for one in (self.keys, self.values))
        return self._view(keys, values, functional.pad(self.document_starts, (0, add)))

    def copy(self, source: int, target: int) -> None:
        """Copy the sequence of row `source` to row `target`."""
        if source != target:
            self.keys[:, target] = self.keys[:, source]
            self.values[:, target] = self.values[:, source]
            self.document_starts[target] = self.document_starts[source]

    def find_starts(
        self, is_first: Bool[Tensor, "rows seq"], token_positions: Int[Tensor, "rows seq"]
    ) -> Int[Tensor, "rows seq"]:
        """Store and return the document start of each new token, at consecutive positions;
        `is_first` marks tokens that start a document."""
        rows = torch.arange(len(is_first), device=is_first.device)[:, None]
        first = token_positions[:, :1]
        before = torch.where(first > 0, self.document_starts[rows, (first - 1).clamp(min=0)], 0)
        new = torch.where(is_first, token_positions, 0).cummax(-1).values
        self.document_starts[rows, token_positions] = document_starts = torch.maximum(new, before)
        return document_starts

    def _view(self, keys: Tensor, values: Tensor, document_starts: Tensor) -> KVCache:
        view = KVCache.__new__(KVCache)
        view.keys, view.values, view.document_starts = keys, values, document_starts
        return view
