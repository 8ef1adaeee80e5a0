"""A Transformer block of a model that generates text on CUDA: its weights as the kernels want them,
and the buffers that flow between them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from groundup.nn.block import TransformerBlock
from groundup.nn.feed_forward import SwiGLU
from groundup.nn.kernels.cuda_decode.attention import attend
from groundup.nn.kernels.cuda_decode.matmul import add_matmul, gated_matmul, normed_matmul


class DecodingBlock:
    """One block, and the keys and values of its layer in the cache."""

    def __init__(self, block: nn.Module, keys: Tensor, values: Tensor) -> None:
        assert isinstance(block, TransformerBlock)
        attention, feed_forward = block.attention, block.feed_forward
        assert isinstance(feed_forward, SwiGLU)
        self._keys, self._values = keys, values
        rope = attention.rope
        self._tables = None if rope is None else (rope.cos, rope.sin)
        with torch.no_grad():
            projections = (attention.query, attention.key, attention.value)
            self.packed_weight = torch.cat([part.weight for part in projections])
            self.gates = torch.cat([feed_forward.gate.weight, feed_forward.up.weight])
        self._output = attention.output.weight.detach()
        self._down = feed_forward.down.weight.detach()
        self._attention_gain = block.attention_norm.weight.detach()
        self._feed_forward_gain = block.feed_forward_norm.weight.detach()
        self._eps = block.attention_norm.eps

    def advance(self, b: Buffers, positions: Tensor, sequences: Tensor | None) -> None:
        normed_matmul(b.x, self._attention_gain, self._eps, self.packed_weight, b.packed)
        attend(b.packed, self._keys, self._values, positions, sequences, self._tables, b.mixed)
        add_matmul(b.mixed, self._output, b.x)
        gated_matmul(b.x, self._feed_forward_gain, self._eps, self.gates, b.gated)
        add_matmul(b.gated, self._down, b.x)


class Buffers:
    """What flows between the kernels, a row for each token."""

    def __init__(
        self, num_rows: int, d_model: int, layers: Sequence[DecodingBlock], like: Tensor
    ) -> None:
        first = layers[0]
        self.x = torch.empty(num_rows, d_model, device=like.device)
        self.mixed = like.new_empty(num_rows, d_model)
        self.packed = like.new_empty(num_rows, len(first.packed_weight))
        self.gated = like.new_empty(num_rows, len(first.gates) // 2)

    def rows(self, n: int) -> Buffers:
        part = object.__new__(Buffers)
        part.x, part.mixed = self.x[:n], self.mixed[:n]
        part.packed, part.gated = self.packed[:n], self.gated[:n]
        return part
