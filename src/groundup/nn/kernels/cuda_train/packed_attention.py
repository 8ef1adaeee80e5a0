"""Rotation and causal attention as one operation on packed projections, so that neither the
rotated copies nor the parts of the gradient are shuffled through memory more than once.

Short sequences go to our own kernel, longer ones through torch's attention between our rotations.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from groundup.nn.kernels.cuda_train.rotation import pack_gradients, rotate_packed
from groundup.nn.kernels.cuda_train.short_attention import (
    short_attention,
    short_attention_backward,
)
from groundup.nn.limits import is_short_attention


@torch.library.custom_op("groundup::packed_attention", mutates_args=())
def packed_attention(
    packed: Tensor, cos: Tensor | None, sin: Tensor | None, num_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Mixed values (batch, seq, d_model) of queries, keys and values side by side; then what the
    way back needs: each row's logsumexp, and the rotated queries and keys."""
    batch, seq, width = packed.shape
    d_head = width // 3 // num_heads
    if is_short_attention(seq, d_head):
        out, logsumexp = short_attention(packed, cos, sin, num_heads)
        return out, logsumexp, packed.new_empty(0)
    query, key, value = _heads(packed, num_heads)
    rotated = packed.new_empty(0)
    if cos is not None and sin is not None:
        rotated, (query, key) = _rotated(packed, cos, sin, num_heads)
    mixed, logsumexp = _attend(query, key, value)
    # The kernels lay heads out within rows, so this is a view of what they wrote.
    return mixed.transpose(1, 2).reshape(batch, seq, width // 3), logsumexp, rotated


@packed_attention.register_fake
def _(
    packed: Tensor, cos: Tensor | None, sin: Tensor | None, num_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    batch, seq, width = packed.shape
    d_head = width // 3 // num_heads
    out = packed.new_empty(batch, seq, width // 3)
    if is_short_attention(seq, d_head) or cos is None:
        rotated = packed.new_empty(0)
    else:
        rotated = packed.new_empty(batch, seq, 2, num_heads, d_head)
    shape: tuple[int, ...] = (batch, num_heads, seq)
    if not is_short_attention(seq, d_head) and _uses_cudnn():
        shape = (*shape, 1)
    return out, packed.new_empty(shape, dtype=torch.float32), rotated


@torch.library.custom_op("groundup::packed_attention_backward", mutates_args=())
def packed_attention_backward(
    d_out: Tensor,
    packed: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    rotated: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    num_heads: int,
) -> Tensor:
    """The gradient of the packed projections."""
    batch, seq, width = packed.shape
    d_head = width // 3 // num_heads
    if is_short_attention(seq, d_head):
        return short_attention_backward(d_out, packed, out, logsumexp, cos, sin, num_heads)
    query, key, value = _heads(packed, num_heads)
    if cos is not None:
        query, key = rotated.permute(2, 0, 3, 1, 4).unbind(0)
    mixed, d_mixed = (
        part.view(batch, seq, num_heads, d_head).transpose(1, 2)
        for part in (out, d_out.contiguous())
    )
    gradients = _attend_backward(d_mixed, query, key, value, mixed, logsumexp)
    return pack_gradients(*gradients, cos, sin)


@packed_attention_backward.register_fake
def _(
    d_out: Tensor,
    packed: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    rotated: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    num_heads: int,
) -> Tensor:
    return torch.empty_like(packed)


def _remember(ctx, inputs, output):
    packed, cos, sin, num_heads = inputs
    ctx.save_for_backward(packed, *output, cos, sin)
    ctx.num_heads = num_heads


def _backward(ctx, d_out, d_logsumexp, d_rotated):
    packed, out, logsumexp, rotated, cos, sin = ctx.saved_tensors
    d_packed = packed_attention_backward(
        d_out, packed, out, logsumexp, rotated, cos, sin, ctx.num_heads
    )
    return d_packed, None, None, None


packed_attention.register_autograd(_backward, setup_context=_remember)


def _heads(packed: Tensor, num_heads: int) -> tuple[Tensor, ...]:
    """Views (batch, heads, seq, d_head) of the three parts."""
    batch, seq, width = packed.shape
    parts = packed.view(batch, seq, 3, num_heads, width // 3 // num_heads)
    return parts.permute(2, 0, 3, 1, 4).unbind(0)


def _rotated(
    packed: Tensor, cos: Tensor, sin: Tensor, num_heads: int
) -> tuple[Tensor, tuple[Tensor, ...]]:
    rotated = rotate_packed(packed, cos, sin, num_heads)
    return rotated, rotated.permute(2, 0, 3, 1, 4).unbind(0)


def _uses_cudnn() -> bool:
    """cuDNN's attention is the faster one from Hopper on, but its gradient has no fixed order of
    sums; torch's flash attention can have one."""
    return _has_fast_cudnn() and not torch.are_deterministic_algorithms_enabled()


@functools.cache
def _has_fast_cudnn() -> bool:
    return torch.cuda.get_device_capability() >= (9, 0) and torch.backends.cudnn.is_available()


def _attend(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    if _uses_cudnn():
        result = torch.ops.aten._scaled_dot_product_cudnn_attention(
            query, key, value, None, True, 0.0, True, False
        )
    else:
        result = torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, 0.0, True, False
        )
    return result[0], result[1]


def _attend_backward(
    d_mixed: Tensor, query: Tensor, key: Tensor, value: Tensor, mixed: Tensor, logsumexp: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    seq = query.shape[2]
    # Without dropout the random state is not looked at; the operators still want tensors.
    empty = torch.zeros((), dtype=torch.int64, device=query.device)
    if _uses_cudnn():
        return torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            d_mixed, query, key, value, mixed, logsumexp, empty, empty, None, None, None,
            seq, seq, 0.0, True,
        )  # fmt: skip
    return torch.ops.aten._scaled_dot_product_flash_attention_backward(
        d_mixed, query, key, value, mixed, logsumexp, None, None, seq, seq, 0.0, True,
        empty, empty,
    )  # fmt: skip
