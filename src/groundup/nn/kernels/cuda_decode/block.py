"""A Transformer block for decoding on CUDA in half precision, with attention of one token per row
over its sequence's cache. A block is five launches:

    packed = norm(x) [W_query; W_key; W_value]ᵀ
    mixed  = attention over the row's cache
    x     += mixed W_outputᵀ
    inner  = f(norm(x) W_upᵀ), or gated by silu
    x     += inner W_downᵀ

In attention, a program processes one row and head. Its keys are distributed over 32 slots, each
with its own maximum and sums: warps exchange nothing before the end, and the order of sums never
depends on the other rows. The number of keys read at once does, and so could the compiler's choice
of which product to fuse into an FMA: explicit FMAs leave it none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from groundup.nn.block import TransformerBlock
from groundup.nn.feed_forward import SwiGLU
from groundup.nn.kernels.cuda_decode.launch import MAX_SOON_BYTES, options, prefetch, wait
from groundup.nn.kernels.cuda_decode.matmul import Buffers, multiply, sum_exactly

_ALIGNMENT = 16
_SLOTS = tl.constexpr(32)
# Blocks of keys (one key per slot) read at once, for d_head up to 64 and for wider heads. With few
# programs, each should wait for memory only once; many programs hide each other's latency, and
# should use few registers.
_BLOCKS_OF_FEW, _BLOCKS_OF_MANY = (8, 4), (2, 1)
_FEW_PROGRAMS = 128


class Shape(NamedTuple):
    """Sizes and features of a layer, for which its kernels are compiled."""

    num_heads: int
    num_kv_heads: int
    d_head: int
    lanes: int
    """d_head rounded up to a power of two."""
    width: int
    """Size of a row of projections: queries, keys, values, and gates if there are any."""
    num_gates: int
    rotates: bool
    normalizes: bool
    adds: bool


class Inputs(NamedTuple):
    """Inputs of the kernels, and the caches: (sequences, kv_heads, positions, d_head). Unused
    tensors are placeholders. A row with sequence -1, at position 0, is not stored."""

    packed: Tensor
    positions: Tensor
    starts: Tensor
    sequences: Tensor
    ids: Tensor
    table: Tensor
    """Value embeddings of each id, scaled by `value_factor`."""
    key_cache: Tensor
    value_cache: Tensor
    cos: Tensor
    sin: Tensor
    query_gain: Tensor
    key_gain: Tensor
    value_factor: Tensor


class DecodingBlock:
    """One block, and its layer's keys and values in the cache."""

    @torch.no_grad()
    def __init__(self, block: nn.Module, gain_after: Tensor | None) -> None:
        """gain_after: gain of the final norm, for the last block."""
        assert isinstance(block, TransformerBlock)
        attention, feed_forward = block.attention, block.feed_forward
        rope, query_norm, key_norm = attention.rope, attention.query_norm, attention.key_norm
        self._gain_after = gain_after
        self._eps = block.attention_norm.eps
        projections = attention.query, attention.key, attention.value
        parts: list[Tensor] = [projection.weight for projection in projections]
        num_gates = 0
        if attention.head_gate is not None:
            # Pad the gates, so that rows of packed projections are aligned for vectorized loads.
            gates = attention.head_gate.weight
            num_gates = -(-len(gates) // _ALIGNMENT) * _ALIGNMENT
            parts += [gates, gates.new_zeros(num_gates - len(gates), gates.shape[1])]
        packed = torch.cat(parts)
        self._shape = Shape(
            attention.num_heads,
            attention.num_kv_heads,
            attention.d_head,
            triton.next_power_of_2(attention.d_head),
            len(packed),
            num_gates,
            rotates=rope is not None,
            normalizes=query_norm is not None,
            adds=attention.value_sum is not None,
        )
        none = block.attention_norm.weight
        self._tensors = (
            *((none, none) if rope is None else (rope.cos, rope.sin)),
            *(none if norm is None else norm.weight for norm in (query_norm, key_norm)),
            none if attention.value_sum is None else attention.value_sum.weight,
        )
        if isinstance(feed_forward, SwiGLU):
            inner = torch.stack([feed_forward.gate.weight, feed_forward.up.weight], dim=1)
        else:
            inner = feed_forward.up.weight
        self._activation = feed_forward.feed_forward_name
        self.weights = (
            _with_gain(packed, block.attention_norm.weight),
            attention.output.weight.detach(),
            _with_gain(inner.reshape(-1, inner.shape[-1]), block.feed_forward_norm.weight),
            feed_forward.down.weight.detach(),
        )
        """In the order in which they are read."""

    def use_cache(self, keys: Tensor, values: Tensor) -> None:
        self._cache = keys, values

    def advance(
        self,
        b: Buffers,
        ids: Tensor,
        positions: Tensor,
        starts: Tensor | None,
        sequences: Tensor | None,
        table: Tensor | None,
        soon: Sequence[Tensor | None],
    ) -> None:
        """Run the block on the tokens' rows of the residual stream, and store keys and values.

        starts: the first position each row attends to; None for all.
        sequences: the sequence of each row. Several rows may belong to one, so all are stored
            before any is read. None if row i is the next token of sequence i.
        table: value embeddings of each id.
        soon: the weight that each matmul prefetches to the L2 cache; then attention prefetches too.
        """
        packed, output, inner, down = self.weights
        eps, shape = self._eps, self._shape
        multiply(b.half, packed, b, "none", b.packed, eps=eps, soon=soon[0])
        num_rows, longest, is_prompt = len(ids), self._cache[0].shape[2], sequences is not None
        own, table = positions if sequences is None else sequences, ids if table is None else table
        first = positions if starts is None else starts
        inputs = Inputs(b.packed, positions, first, own, ids, table, *self._cache, *self._tensors)
        if is_prompt:
            grid = (num_rows, shape.num_kv_heads)
            _store[grid](inputs, longest, eps, SHAPE=shape, **options(num_warps=1))
        is_few, is_wide = num_rows * shape.num_heads <= _FEW_PROGRAMS, shape.d_head > 64
        blocks = (_BLOCKS_OF_FEW if is_few else _BLOCKS_OF_MANY)[is_wide]
        most_bytes = 0 if soon[0] is None else MAX_SOON_BYTES // (num_rows * shape.num_kv_heads)
        # With few rows, latency dominates: more warps shorten the chains of dependent operations.
        num_warps = max(1, shape.lanes // (8 if is_few else 32))
        sizes = options(num_warps=num_warps, num_stages=1, enable_fp_fusion=False)
        sizes |= {"STORED": is_prompt, "DOCUMENTS": starts is not None}
        sizes |= {"BLOCKS": blocks, "SHAPE": shape}
        numbers = longest, eps, shape.d_head**-0.5, most_bytes
        _attend[(num_rows, shape.num_heads)](inputs, b.mixed, *numbers, **sizes)
        multiply(b.mixed, output, b, "add", soon=soon[1])
        multiply(b.half, inner, b, self._activation, b.inner, eps=eps, soon=soon[2])
        multiply(b.inner, down, b, "add", gain=self._gain_after, soon=soon[3])


def _with_gain(weight: Tensor, gain: Tensor) -> Tensor:
    """Fold the gain of a norm into the weight that follows it."""
    return (weight.float() * gain.float()).to(weight.dtype)


def weights_soon(blocks: Sequence[DecodingBlock], last: Tensor) -> list[list[Tensor | None]]:
    """For each matmul of each block, the weight of the matmul after the next one; `last` is the
    output layer's."""
    weights = [*(weight for block in blocks for weight in block.weights), last, None]
    return [weights[start + 2 : start + 6] for start in range(0, 4 * len(blocks), 4)]


@triton.jit
def _head(inputs, head, row, position, gain, eps, SHAPE: tl.constexpr):
    """One head of a row of `packed` in float32, with QK norm and RoPE."""
    lane = tl.arange(0, SHAPE.lanes)
    fits = lane < SHAPE.d_head
    start = inputs.packed + row * SHAPE.width + head * SHAPE.d_head
    value = tl.load(start + lane, mask=fits, other=0.0).to(tl.float32)
    scale = 1.0
    if SHAPE.normalizes:
        scale = tl.rsqrt(sum_exactly(value * value) / SHAPE.d_head + eps)
        value *= scale * tl.load(gain + lane, mask=fits, other=0.0).to(tl.float32)
    if SHAPE.rotates:
        other = tl.load(start + (lane ^ 1), mask=fits, other=0.0).to(tl.float32)
        if SHAPE.normalizes:
            other *= scale * tl.load(gain + (lane ^ 1), mask=fits, other=0.0).to(tl.float32)
        offset = position * (SHAPE.d_head // 2) + lane // 2
        cosine = tl.load(inputs.cos + offset, mask=fits, other=0.0)
        sine = tl.load(inputs.sin + offset, mask=fits, other=0.0)
        value = value * cosine + tl.where(lane % 2 == 0, -other, other) * sine
    return value


@triton.jit
def _key_and_value(inputs, head, row, position, eps, SHAPE: tl.constexpr):
    """Key and value of a row and head in float32."""
    key = _head(inputs, SHAPE.num_heads + head, row, position, inputs.key_gain, eps, SHAPE)
    lane = tl.arange(0, SHAPE.lanes)
    fits = lane < SHAPE.d_head
    first = (SHAPE.num_heads + SHAPE.num_kv_heads + head) * SHAPE.d_head
    start = inputs.packed + row * SHAPE.width + first
    value = tl.load(start + lane, mask=fits, other=0.0).to(tl.float32)
    if SHAPE.adds:
        id = tl.load(inputs.ids + row).to(tl.int64)
        entry = inputs.table + (id * SHAPE.num_kv_heads + head) * SHAPE.d_head + lane
        added = tl.load(entry, mask=fits, other=0.0).to(tl.float32)
        value += tl.load(inputs.value_factor).to(tl.float32) * added
    return key, value


@triton.jit
def _store(inputs, longest, eps, SHAPE: tl.constexpr, EARLY: tl.constexpr):
    wait(EARLY)
    row = tl.program_id(0)
    head = tl.program_id(1)
    position = tl.load(inputs.positions + row).to(tl.int32)
    sequence = tl.load(inputs.sequences + row).to(tl.int64)
    key, value = _key_and_value(inputs, head, row, position, eps, SHAPE)
    lane = tl.arange(0, SHAPE.lanes)
    first = ((sequence * SHAPE.num_kv_heads + head) * longest + position) * SHAPE.d_head
    inside = (lane < SHAPE.d_head) & (sequence >= 0)
    dtype = inputs.key_cache.dtype.element_ty
    tl.store(inputs.key_cache + first + lane, key.to(dtype), mask=inside)
    tl.store(inputs.value_cache + first + lane, value.to(dtype), mask=inside)


@triton.jit
def _cached(cache, start, first, end, BLOCKS: tl.constexpr, SHAPE: tl.constexpr):
    """Load blocks of a sequence's keys or values, from position `first` to before `end`."""
    lane = tl.arange(0, SHAPE.lanes)
    tiles = ()
    for block in tl.static_range(BLOCKS):
        index = first + block * _SLOTS + tl.arange(0, _SLOTS)
        known = (index < end)[:, None] & (lane < SHAPE.d_head)[None, :]
        offset = index[:, None] * SHAPE.d_head + lane[None, :]
        tile = tl.load(cache + start + offset, mask=known, other=0.0)
        tiles = tiles + (tile,)  # type: ignore[assignment]  # noqa: RUF005
    return tiles


@triton.jit
def _add_keys(
    query, key_tiles, value_tiles, first, begin, end, top, total, sums, BLOCKS: tl.constexpr
):
    """Add blocks to each slot's maximum, sum of weights and sum of values."""
    for block in tl.static_range(BLOCKS):
        if first + block * _SLOTS < end:
            scores = tl.sum(key_tiles[block].to(tl.float32) * query[None, :], axis=1)
            index = first + block * _SLOTS + tl.arange(0, _SLOTS)
            scores = tl.where((index >= begin) & (index < end), scores, float("-inf"))
            new_top = tl.maximum(top, scores)
            weight = tl.exp(scores - new_top)
            shrink = tl.exp(top - new_top)
            value = value_tiles[block].to(tl.float32)
            sums = tl.fma(weight[:, None], value, sums * shrink[:, None])
            total = tl.fma(total, shrink, weight)
            top = new_top
    return top, total, sums


@triton.jit
def _attend(
    inputs, mixed, longest, eps, scale, most_bytes,
    STORED: tl.constexpr, DOCUMENTS: tl.constexpr, BLOCKS: tl.constexpr, SHAPE: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """softmax(q Kᵀ · scale) V over the sequence so far, by online softmax."""
    if STORED:
        wait(EARLY)
    row = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // (SHAPE.num_heads // SHAPE.num_kv_heads)
    span: tl.constexpr = _SLOTS * BLOCKS
    lanes: tl.constexpr = SHAPE.lanes
    position = tl.load(inputs.positions + row).to(tl.int32)
    sequence = row.to(tl.int64)
    if STORED:
        sequence = tl.load(inputs.sequences + row).to(tl.int64)
    lane = tl.arange(0, lanes)
    fits = lane < SHAPE.d_head
    start = (sequence * SHAPE.num_kv_heads + kv_head) * longest * SHAPE.d_head
    # No launch of this step changes earlier positions of the cache, so read them before waiting.
    end = tl.minimum(position, longest)
    begin, base = 0, 0
    if DOCUMENTS:
        begin = tl.load(inputs.starts + row).to(tl.int32)
        # Rounded down, so that a key's slot does not depend on the start of the document.
        base = begin // span * span
    key_tiles = _cached(inputs.key_cache, start, base, end, BLOCKS, SHAPE)
    value_tiles = _cached(inputs.value_cache, start, base, end, BLOCKS, SHAPE)
    if not STORED:
        # Prefetch the other keys and values, rounded up to pieces of 1,024 bytes.
        each: tl.constexpr = SHAPE.d_head * 2
        if each % 16 == 0:
            after = base + span
            left = tl.minimum((longest - after) * each, (end - after) * each + 1023)
            left = tl.minimum(left, most_bytes)
            piece = tl.arange(0, 128)
            rest = start + after * SHAPE.d_head
            prefetch(inputs.key_cache + rest, piece, left, EARLY)
            prefetch(inputs.value_cache + rest, piece, left, EARLY)
        wait(EARLY)

    query = scale * _head(inputs, head, row, position, inputs.query_gain, eps, SHAPE)
    # Key and value of the new token come from `packed`, earlier ones from the cache.
    key, value = _key_and_value(inputs, kv_head, row, position, eps, SHAPE)
    dtype = inputs.key_cache.dtype.element_ty
    key = key.to(dtype)
    if not STORED:
        # All heads of a group store the same values.
        own = start + position * SHAPE.d_head + lane
        inside = fits & (position < longest)
        tl.store(inputs.key_cache + own, key, mask=inside)
        tl.store(inputs.value_cache + own, value.to(dtype), mask=inside)
    # The maximum of a slot without keys is below all scores, but finite to avoid NaN differences.
    top = tl.full((_SLOTS,), -1e30, tl.float32)
    total = tl.zeros((_SLOTS,), dtype=tl.float32)
    sums = tl.zeros((_SLOTS, lanes), dtype=tl.float32)
    top, total, sums = _add_keys(
        query, key_tiles, value_tiles, base, begin, end, top, total, sums, BLOCKS
    )
    for first in range(base + span, end, span):
        key_tiles = _cached(inputs.key_cache, start, first, end, BLOCKS, SHAPE)
        value_tiles = _cached(inputs.value_cache, start, first, end, BLOCKS, SHAPE)
        top, total, sums = _add_keys(
            query, key_tiles, value_tiles, first, begin, end, top, total, sums, BLOCKS
        )
    own_score = sum_exactly(query * key.to(tl.float32))
    highest = tl.maximum(own_score, tl.max(top, axis=0))
    shrink = tl.exp(top - highest)
    own_weight = tl.exp(own_score - highest)
    whole = own_weight + sum_exactly(total * shrink)
    mix = own_weight * value + sum_exactly(sums * shrink[:, None])
    if SHAPE.num_gates:
        column = SHAPE.width - SHAPE.num_gates + head
        gate = tl.load(inputs.packed + row * SHAPE.width + column).to(tl.float32)
        whole *= 0.5 * (1.0 + tl.exp(-gate))
    out = mixed + (row * SHAPE.num_heads + head) * SHAPE.d_head + lane
    tl.store(out, (mix / whole).to(mixed.dtype.element_ty), mask=fits)
