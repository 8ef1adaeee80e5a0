"""A Transformer block of a model that generates text on CUDA: its weights as the kernels want them,
and the buffers that flow between them."""

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
        self, block: nn.Module, keys: Tensor, values: Tensor, mix_after: Tensor | None
    ) -> None:
        """`mix_after` are the factors of the next block's `InputMix`, if it has one."""
        assert isinstance(block, TransformerBlock)
        attention, feed_forward = block.attention, block.feed_forward
        self._keys, self._values = keys, values
        self._mix_after = mix_after
        rope, query_norm, key_norm = attention.rope, attention.query_norm, attention.key_norm
        self._eps = block.attention_norm.eps
        self._changes = HeadChanges(
            None if rope is None else (rope.cos, rope.sin),
            None
            if query_norm is None or key_norm is None
            else (query_norm.weight, key_norm.weight),
            self._eps,
            num_gates=0 if attention.head_gate is None else _padded(attention.num_heads),
            value_factor=None if attention.value_sum is None else attention.value_sum.weight,
        )
        with torch.no_grad():
            parts: list[Tensor] = [
                attention.query.weight,
                attention.key.weight,
                attention.value.weight,
            ]
            if attention.head_gate is not None:
                gates = attention.head_gate.weight
                no_gates = gates.new_zeros(_padded(len(gates)) - len(gates), gates.shape[1])
                parts += [gates, no_gates]
            packed = torch.cat(parts)
            self.packed_weight = matmul.with_gain(packed, block.attention_norm.weight)
            if isinstance(feed_forward, SwiGLU):
                self._kind = "swiglu"
                inner = torch.cat([feed_forward.gate.weight, feed_forward.up.weight])
            else:
                self._kind = feed_forward.activation
                inner = feed_forward.up.weight
            self._inner = matmul.with_gain(inner, block.feed_forward_norm.weight)
        self._output = attention.output.weight.detach()
        self._down = feed_forward.down.weight.detach()
        self.d_ff = self._down.shape[1]

    def advance(
        self,
        b: Buffers,
        positions: Tensor,
        sequences: Tensor | None,
        extra: tuple[Tensor, Tensor] | None,
    ) -> None:
        """See `attend` for what flows besides the buffers."""
        matmul.normed_matmul(b.stream, self._eps, self.packed_weight, b.packed)
        cache = (self._keys, self._values)
        attend(b.packed, *cache, positions, sequences, self._changes, b.mixed, extra)
        matmul.add_matmul(b.mixed, self._output, b.stream, None)
        matmul.inner_matmul(b.stream, self._eps, self._inner, b.inner, self._kind)
        matmul.add_matmul(b.inner, self._down, b.stream, self._mix_after)


def _padded(num_gates: int) -> int:
    """Rows of packed projections begin where several numbers can be read at a time."""
    return -(-num_gates // _ALIGNMENT) * _ALIGNMENT


class Buffers(NamedTuple):
    """What flows between the kernels, a row for each token."""

    stream: matmul.Stream
    packed: Tensor
    mixed: Tensor
    inner: Tensor

    @classmethod
    def make(cls, num_rows: int, layers: Sequence[DecodingBlock], like: Tensor) -> Buffers:
        """`like` is a weight with d_model columns."""
        d_model = like.shape[1]
        x = torch.empty(num_rows, d_model, device=like.device)
        half = like.new_empty(num_rows, d_model)
        squares = x.new_empty(num_rows, -(-d_model // matmul.TILE.value))
        return cls(
            matmul.Stream(x, half, squares, torch.empty_like(x)),
            like.new_empty(num_rows, len(layers[0].packed_weight)),
            torch.empty_like(half),
            like.new_empty(num_rows, layers[0].d_ff),
        )

    def rows(self, n: int) -> Buffers:
        """Those of the first n tokens."""
        stream = matmul.Stream(*(part[:n] for part in self.stream))
        return Buffers(stream, self.packed[:n], self.mixed[:n], self.inner[:n])
