"""A Transformer block of a model that generates text on CUDA: its weights as the kernels want them,
and the buffers that flow between them. Five launches make a block:

    packed = norm(x) [W_query; W_key; W_value]ᵀ      `normed_matmul`
    mixed  = attention over the row's cache          `attend`
    x     += mixed W_outputᵀ                         `add_matmul`
    inner  = f(norm(x) W_upᵀ), or gated by silu      `normed_matmul`
    x     += inner W_downᵀ                           `add_matmul`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from groundup.nn.block import TransformerBlock
from groundup.nn.feed_forward import SwiGLU
from groundup.nn.kernels.cuda_decode import matmul
from groundup.nn.kernels.cuda_decode.attention import HeadChanges, attend

_ALIGNMENT = 16


class DecodingBlock:
    """One block, and the keys and values of its layer in the cache."""

    def __init__(
        self, block: nn.Module, keys: Tensor, values: Tensor, gain_after: Tensor | None
    ) -> None:
        """`gain_after` is the gain of the final norm, after the last block."""
        assert isinstance(block, TransformerBlock)
        attention, feed_forward = block.attention, block.feed_forward
        rope, query_norm, key_norm = attention.rope, attention.query_norm, attention.key_norm
        self._keys, self._values = keys, values
        self._gain_after = gain_after
        self._eps = block.attention_norm.eps
        parts: list[Tensor] = [
            attention.query.weight,
            attention.key.weight,
            attention.value.weight,
        ]
        num_gates = 0
        if attention.head_gate is not None:
            # Rows of packed projections begin where several numbers can be read at a time.
            gates = attention.head_gate.weight
            num_gates = -(-len(gates) // _ALIGNMENT) * _ALIGNMENT
            parts += [gates, gates.new_zeros(num_gates - len(gates), gates.shape[1])]
        gains = None
        if query_norm is not None and key_norm is not None:
            gains = query_norm.weight, key_norm.weight
        self._changes = HeadChanges(
            rotation=None if rope is None else (rope.cos, rope.sin),
            gains=gains,
            eps=self._eps,
            num_gates=num_gates,
            value_factor=None if attention.value_sum is None else attention.value_sum.weight,
        )
        self._activation = "swiglu"
        with torch.no_grad():
            if isinstance(feed_forward, SwiGLU):
                pairs = torch.stack([feed_forward.gate.weight, feed_forward.up.weight], dim=1)
                inner = pairs.flatten(0, 1)
            else:
                self._activation = feed_forward.activation
                inner = feed_forward.up.weight
            self.weights = (
                matmul.with_gain(torch.cat(parts), block.attention_norm.weight),
                attention.output.weight.detach(),
                matmul.with_gain(inner, block.feed_forward_norm.weight),
                feed_forward.down.weight.detach(),
            )
            """In the order in which they are read."""

    def advance(
        self,
        b: Buffers,
        positions: Tensor,
        sequences: Tensor | None,
        extra: tuple[Tensor, Tensor] | None,
        soon: Sequence[Tensor | None],
    ) -> None:
        """See `attend` for what flows besides the buffers.

        soon: what each matmul lets be on its way to the cache; if anything, attention does as well.
        """
        packed, output, inner, down = self.weights
        matmul.normed_matmul(b.stream, self._eps, packed, b.packed, soon=soon[0])
        attend(
            b.packed,
            self._keys,
            self._values,
            positions,
            sequences,
            self._changes,
            b.mixed,
            extra,
            fetches_ahead=soon[0] is not None,
        )
        matmul.add_matmul(b.mixed, output, b.stream, soon=soon[1])
        matmul.normed_matmul(b.stream, self._eps, inner, b.inner, self._activation, soon[2])
        matmul.add_matmul(b.inner, down, b.stream, self._gain_after, soon[3])


def weights_soon(blocks: Sequence[DecodingBlock], last: Tensor) -> list[list[Tensor | None]]:
    """For each matmul of each block the weight after the next one's; `last` is that of the output
    layer."""
    weights = [*(weight for block in blocks for weight in block.weights), last, None]
    return [weights[start + 2 : start + 6] for start in range(0, 4 * len(blocks), 4)]


class Buffers(NamedTuple):
    """What flows between the kernels, a row for each token."""

    stream: matmul.Stream
    packed: Tensor
    mixed: Tensor
    inner: Tensor

    @classmethod
    def make(cls, num_rows: int, block: DecodingBlock) -> Buffers:
        packed, _, _, down = block.weights
        d_model, d_ff = down.shape
        x = torch.empty(num_rows, d_model, device=down.device)
        half = down.new_empty(num_rows, d_model)
        squares = x.new_empty(num_rows, -(-d_model // matmul.TILE.value))
        return cls(
            matmul.Stream(x, half, squares),
            down.new_empty(num_rows, len(packed)),
            torch.empty_like(half),
            down.new_empty(num_rows, d_ff),
        )

    def rows(self, n: int) -> Buffers:
        """Those of the first n tokens."""
        return Buffers(self.stream.rows(n), self.packed[:n], self.mixed[:n], self.inner[:n])
