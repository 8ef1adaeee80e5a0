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
        self,
        block: nn.Module,
        keys: Tensor,
        values: Tensor,
        mix_after: Tensor | None,
        gain_after: Tensor | None,
    ) -> None:
        """`mix_after` are the factors of the next block's `InputMix`, if it has one; `gain_after`
        is the gain of the final norm, after the last block."""
        assert isinstance(block, TransformerBlock)
        attention, feed_forward = block.attention, block.feed_forward
        self._keys, self._values = keys, values
        self._mix_after, self._gain_after = mix_after, gain_after
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
                pairs = torch.stack([feed_forward.gate.weight, feed_forward.up.weight], dim=1)
                inner = pairs.flatten(0, 1)
            else:
                self._kind = feed_forward.activation
                inner = feed_forward.up.weight
            self._inner = matmul.with_gain(inner, block.feed_forward_norm.weight)
        self._output = attention.output.weight.detach()
        self._down = feed_forward.down.weight.detach()
        self.d_ff = self._down.shape[1]

    @property
    def weights(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """In the order in which they are read."""
        return self.packed_weight, self._output, self._inner, self._down

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
        matmul.normed_matmul(b.stream, self._eps, self.packed_weight, b.packed, soon[0])
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
        matmul.add_matmul(b.mixed, self._output, b.stream, soon=soon[1])
        matmul.inner_matmul(b.stream, self._eps, self._inner, b.inner, self._kind, soon[2])
        mix, gain = self._mix_after, self._gain_after
        matmul.add_matmul(b.inner, self._down, b.stream, mix, gain, soon[3])


def weights_soon(blocks: Sequence[DecodingBlock], last: Tensor) -> list[list[Tensor | None]]:
    """For each matmul of each block the weight after the next one's; `last` is that of the output
    layer."""
    weights = [*(weight for block in blocks for weight in block.weights), last, None]
    return [weights[start + 2 : start + 6] for start in range(0, 4 * len(blocks), 4)]


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
        return Buffers(self.stream.rows(0, n), self.packed[:n], self.mixed[:n], self.inner[:n])
