"""QK norm, RoPE, value embeddings and causal attention as one operation on packed projections, so
that attention's inputs and the parts of the gradient pass through memory only once.

Forward uses our kernel for short sequences and for document masking, and torch's attention for the
rest; backward is always ours.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import triton
from torch import Tensor

from groundup.nn.kernels.cuda_train import attention as kernels
from groundup.nn.limits import is_short_attention

# Tiles are square, with this many rows and one warp per 16 rows.
_TILE = 64
_TILES: dict[str, Any] = {"TILE": _TILE, "num_warps": _TILE // 16}
# Pipeline stages, and register limits where fewer registers let more programs run; the fastest
# settings found on an H200. Backward: for d_head up to 32, and for 64.
_FORWARD = {"num_stages": 3}
_OF_QUERIES = ({"num_stages": 3}, {"num_stages": 2, "maxnreg": 128})
_OF_KEYS = ({"num_stages": 1, "maxnreg": 128}, {"num_stages": 1, "maxnreg": 168})
_PREPARED = 2048  # Elements (whole heads) per program of `prepare`.


@torch.library.custom_op("groundup::packed_attention", mutates_args=())
def packed_attention(
    packed: Tensor, num_heads: int, cos: Tensor | None, sin: Tensor | None,
    query_gain: Tensor | None, key_gain: Tensor | None, eps: float,
    extra: Tensor | None, factor: Tensor | None, starts: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return attention's output (batch, seq, d_model) for packed queries, keys and values, and what
    backward needs: each row's logsumexp, and the inputs of attention if they are not `packed`.

    Before attention, each head x of queries and keys becomes RoPE(x / √(mean(x²) + eps) · gain),
    and values become v + factor · extra; None skips a step.

    packed: (batch, seq, 3 · d_model).   cos, sin: (at least seq, d_head / 2).
    query_gain, key_gain: (d_head,).   extra: (batch, seq, d_model).   factor: one number.
    starts: (batch, seq), the first position of each token's document.
    """
    packed = packed.contiguous()
    batch, seq, width = packed.shape
    d_head = width // 3 // num_heads
    kinds = _kinds(cos, query_gain, extra)
    source, prepared = packed, packed.new_empty(0)
    if any(kinds.values()):
        source = prepared = torch.empty_like(packed)
        count, tile = packed.numel() // (3 * d_head), _PREPARED // d_head
        kernels.prepare[(triton.cdiv(count, tile), 3)](
            packed, prepared, *_filled(packed, cos, sin, query_gain, key_gain, extra, factor),
            eps, count, seq, HEADS=num_heads, TILE=tile, D_HEAD=d_head, **kinds, num_warps=2,
        )  # fmt: skip
    if starts is None and not is_short_attention(seq, d_head):
        heads = source.view(batch, seq, 3, num_heads, d_head).permute(2, 0, 3, 1, 4).unbind(0)
        mixed, logsumexp = _attend(*heads)
        # The kernels store heads within rows, so this is a view.
        out = mixed.transpose(1, 2).reshape(batch, seq, width // 3)
        return out, logsumexp.view(batch, num_heads, seq), prepared
    out = packed.new_empty(batch, seq, width // 3)
    logsumexp = packed.new_empty(batch, num_heads, seq, dtype=torch.float32)
    scale = 1.0 / (math.log(2.0) * math.sqrt(d_head))
    num_parts = 1 if starts is None else triton.cdiv(seq, _TILE)
    kernels.forward[(batch * num_heads, num_parts)](
        source, out, logsumexp, *_filled(packed, starts), seq, num_heads, scale,
        D_HEAD=d_head, DOCUMENTS=starts is not None, **_FORWARD, **_TILES,
    )  # fmt: skip
    return out, logsumexp, prepared


@packed_attention.register_fake
def _(packed, num_heads, cos, sin, query_gain, key_gain, eps, extra, factor, starts):
    batch, seq, width = packed.shape
    is_plain = cos is None and query_gain is None and extra is None
    logsumexp = packed.new_empty(batch, num_heads, seq, dtype=torch.float32)
    prepared = packed.new_empty(0 if is_plain else packed.shape)
    return packed.new_empty(batch, seq, width // 3), logsumexp, prepared


@torch.library.custom_op("groundup::packed_attention_backward", mutates_args=())
def packed_attention_backward(
    d_out: Tensor, packed: Tensor, prepared: Tensor, out: Tensor, logsumexp: Tensor,
    num_heads: int, cos: Tensor | None, sin: Tensor | None,
    query_gain: Tensor | None, key_gain: Tensor | None, eps: float,
    extra: Tensor | None, factor: Tensor | None, starts: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of the packed projections, both gains (2, d_head), the value embeddings
    and their factor; empty for inputs that are None.

    packed: the input of the QK norm; not read without one.
    prepared: the input of attention; empty if that is `packed`.
    """
    packed = packed.contiguous()
    batch, seq, width = packed.shape
    d_head = width // 3 // num_heads
    # One grid dimension for tile and head: the other two are limited to 65,535.
    num_programs = triton.cdiv(seq, _TILE) * batch * num_heads
    d_packed = torch.empty_like(packed)
    d_extra = packed.new_empty(0) if extra is None else extra.new_empty(extra.shape)
    sums = packed.new_empty(batch, num_heads, seq, dtype=torch.float32)
    d_gains = sums.new_empty(0 if query_gain is None else (2, num_programs, d_head))
    d_factor = sums.new_empty(0 if extra is None else num_programs)
    arguments = (
        prepared if prepared.numel() else packed, packed, d_out.contiguous(), out.contiguous(),
        logsumexp.contiguous(), sums, *_filled(packed, starts), d_packed,
        *_filled(packed, cos, sin, query_gain, key_gain, extra, factor),
        d_gains, d_extra, d_factor, eps, seq, num_heads, 1.0 / math.sqrt(d_head),
    )  # fmt: skip
    sizes = {"D_HEAD": d_head, **_kinds(cos, query_gain, extra), **_TILES}
    sizes["DOCUMENTS"] = starts is not None
    kernels.query_gradient[(num_programs,)](*arguments, **sizes, **_OF_QUERIES[d_head > 32])
    kernels.key_gradient[(num_programs,)](*arguments, **sizes, **_OF_KEYS[d_head > 32])
    if query_gain is not None:
        d_gains = d_gains.sum(dim=1)
    if extra is not None:
        d_factor = d_factor.sum(dim=0, keepdim=True)
    return d_packed, d_gains, d_extra, d_factor


@packed_attention_backward.register_fake
def _(
    d_out, packed, prepared, out, logsumexp, num_heads,
    cos, sin, query_gain, key_gain, eps, extra, factor, starts,
):  # fmt: skip
    wide = {"dtype": torch.float32}
    return (
        torch.empty_like(packed),
        packed.new_empty(0 if query_gain is None else (2, len(query_gain)), **wide),
        packed.new_empty(0) if extra is None else extra.new_empty(extra.shape),
        packed.new_empty(0 if extra is None else 1, **wide),
    )


def _remember(ctx, inputs, output):
    packed, ctx.num_heads, cos, sin, query_gain, key_gain, ctx.eps, extra, factor, starts = inputs
    out, logsumexp, prepared = output
    # The gradient of a norm needs its input; without a norm, attention's input suffices.
    kept = packed if query_gain is not None or not prepared.numel() else prepared
    # Only the first of the three results has a gradient; do not materialize zeros for the others.
    ctx.set_materialize_grads(False)
    sides = cos, sin, query_gain, key_gain, extra, factor, starts
    ctx.save_for_backward(kept, prepared, out, logsumexp, *sides)


def _backward(ctx, d_out, d_logsumexp, d_prepared):
    packed, prepared, out, logsumexp, *rest = ctx.saved_tensors
    cos, sin, query_gain, key_gain, extra, factor, starts = rest
    d_packed, d_gains, d_extra, d_factor = packed_attention_backward(
        d_out, packed, prepared, out, logsumexp, ctx.num_heads,
        cos, sin, query_gain, key_gain, ctx.eps, extra, factor, starts,
    )  # fmt: skip
    d_gains = (None, None) if query_gain is None else d_gains.to(query_gain.dtype).unbind(0)
    of_extra = (None, None) if extra is None else (d_extra, d_factor.to(factor.dtype))
    return d_packed, None, None, None, *d_gains, None, *of_extra, None


packed_attention.register_autograd(_backward, setup_context=_remember)


def _filled(like: Tensor, *tensors: Tensor | None) -> list[Tensor]:
    """Replace None by `like`, which the kernel then ignores."""
    return [like if tensor is None else tensor.contiguous() for tensor in tensors]


def _kinds(cos: Tensor | None, gain: Tensor | None, extra: Tensor | None) -> dict[str, bool]:
    return {"ROTATES": cos is not None, "NORMALIZES": gain is not None, "ADDS": extra is not None}


def _attend(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Output and logsumexp of torch's causal attention."""
    if _has_fast_cudnn():
        attend = torch.ops.aten._scaled_dot_product_cudnn_attention
        result = attend(query, key, value, None, True, 0.0, True, False)
    else:
        attend = torch.ops.aten._scaled_dot_product_flash_attention
        result = attend(query, key, value, 0.0, True, False)
    return result[0], result[1]


@functools.cache
def _has_fast_cudnn() -> bool:
    """Whether cuDNN's attention is available and the faster one: from Hopper on."""
    return torch.cuda.get_device_capability() >= (9, 0) and torch.backends.cudnn.is_available()
