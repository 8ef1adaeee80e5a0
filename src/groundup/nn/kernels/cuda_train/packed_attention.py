"""Query/key norm, rotation, extra values and causal attention as one operation on packed
projections, so that neither what attention sees nor the parts of the gradient go through memory
more than once.

Short sequences go to our own kernel, which rotates by itself where that is all there is to do,
longer ones to torch's; on the way back those that are not very long go to ours too.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from groundup.nn.kernels.cuda_train.attention import attention_backward, short_attention
from groundup.nn.kernels.cuda_train.projections import prepare, prepare_backward
from groundup.nn.limits import is_quick_on_the_way_back, is_short_attention


@torch.library.custom_op("groundup::packed_attention", mutates_args=())
def packed_attention(
    packed: Tensor,
    num_heads: int,
    cos: Tensor | None,
    sin: Tensor | None,
    query_gain: Tensor | None,
    key_gain: Tensor | None,
    eps: float,
    extra: Tensor | None,
    factor: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Mixed values (batch, seq, d_model) of queries, keys and values side by side; then what the
    way back needs: each row's logsumexp, and what `prepare` made of the projections."""
    batch, seq, width = packed.shape
    is_short, is_plain, num_parts = _way(packed, num_heads, cos, query_gain, extra)
    if is_short and is_plain:
        return short_attention(packed, num_heads, _rotation(cos, sin))
    prepared = packed.new_empty(0)
    if num_parts:
        prepared = prepare(
            packed, num_heads, num_parts, cos, sin, query_gain, key_gain, eps, extra, factor
        )
    if is_short:
        out, logsumexp, _ = short_attention(prepared.view_as(packed), num_heads, None)
        return out, logsumexp, prepared
    mixed, logsumexp = _attend(*_heads(packed, prepared, num_heads))
    # The kernels lay heads out within rows, so this is a view of what they wrote.
    return mixed.transpose(1, 2).reshape(batch, seq, width // 3), logsumexp, prepared


@packed_attention.register_fake
def _(packed, num_heads, cos, sin, query_gain, key_gain, eps, extra, factor):
    batch, seq, width = packed.shape
    is_short, _, num_parts = _way(packed, num_heads, cos, query_gain, extra)
    prepared = packed.new_empty(0)
    if num_parts:
        prepared = packed.new_empty(batch, seq, num_parts, num_heads, width // 3 // num_heads)
    shape: tuple[int, ...] = (batch, num_heads, seq)
    if not is_short and _uses_cudnn():
        shape = (*shape, 1)
    out = packed.new_empty(batch, seq, width // 3)
    return out, packed.new_empty(shape, dtype=torch.float32), prepared


@torch.library.custom_op("groundup::packed_attention_backward", mutates_args=())
def packed_attention_backward(
    d_out: Tensor,
    packed: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    prepared: Tensor,
    num_heads: int,
    cos: Tensor | None,
    sin: Tensor | None,
    query_gain: Tensor | None,
    key_gain: Tensor | None,
    eps: float,
    extra: Tensor | None,
    factor: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of the packed projections, of the gains, the extra values and their factor;
    empty ones of what is None."""
    batch, seq, width = packed.shape
    is_short, is_plain, _ = _way(packed, num_heads, cos, query_gain, extra)
    empty, wide = packed.new_empty(0), packed.new_empty(0, dtype=torch.float32)
    d_out = d_out.contiguous()
    heads = _heads(packed, prepared, num_heads)
    is_quick = _is_hopper() and is_quick_on_the_way_back(seq, width // 3 // num_heads)
    if is_short or is_quick:
        rotation = _rotation(cos, sin) if is_plain else None
        d_packed = attention_backward(d_out, *heads, out, logsumexp, rotation)
        if is_plain:
            return d_packed, wide, empty, wide.clone()
        gradients = _heads(d_packed, empty, num_heads)
    else:
        mixed, d_mixed = (
            part.view(batch, seq, num_heads, -1).transpose(1, 2) for part in (out, d_out)
        )
        gradients = _attend_backward(d_mixed, *heads, mixed, logsumexp)
    return prepare_backward(gradients, packed, cos, sin, query_gain, key_gain, eps, extra, factor)


@packed_attention_backward.register_fake
def _(
    d_out, packed, out, logsumexp, prepared, num_heads, cos, sin,
    query_gain, key_gain, eps, extra, factor,
):  # fmt: skip
    wide = {"dtype": torch.float32}
    return (
        torch.empty_like(packed),
        packed.new_empty(0 if query_gain is None else (2, len(query_gain)), **wide),
        packed.new_empty(0) if extra is None else extra.new_empty(extra.shape),
        packed.new_empty(0 if extra is None else 1, **wide),
    )


def _remember(ctx, inputs, output):
    packed, ctx.num_heads, cos, sin, query_gain, key_gain, ctx.eps, extra, factor = inputs
    # Rotating back takes no more than what was rotated.
    _, is_plain, num_parts = _way(packed, ctx.num_heads, cos, query_gain, extra)
    kept = None if is_plain and num_parts == 3 else packed
    # Of the three results the first alone has a gradient; no zeros for the others.
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(kept, *output, cos, sin, query_gain, key_gain, extra, factor)


def _backward(ctx, d_out, d_logsumexp, d_prepared):
    packed, out, logsumexp, prepared, *rest = ctx.saved_tensors
    cos, sin, query_gain, key_gain, extra, factor = rest
    if packed is None:
        packed, prepared = prepared.flatten(2), prepared.new_empty(0)
    d_packed, d_gains, d_extra, d_factor = packed_attention_backward(
        d_out, packed, out, logsumexp, prepared, ctx.num_heads, cos, sin,
        query_gain, key_gain, ctx.eps, extra, factor,
    )  # fmt: skip
    d_gains = (None, None) if query_gain is None else d_gains.to(query_gain.dtype).unbind(0)
    of_extra = (None, None) if extra is None else (d_extra, d_factor.to(factor.dtype))
    return d_packed, None, None, None, *d_gains, None, *of_extra


packed_attention.register_autograd(_backward, setup_context=_remember)


def _way(
    packed: Tensor,
    num_heads: int,
    cos: Tensor | None,
    query_gain: Tensor | None,
    extra: Tensor | None,
) -> tuple[bool, bool, int]:
    """Whether our own kernel attends, whether there is nothing to do before that but the rotation,
    and how many of queries, keys and values are made anew for attention: 0, 2 or 3 of them."""
    is_short = is_short_attention(packed.shape[1], packed.shape[2] // 3 // num_heads)
    is_plain = query_gain is None and extra is None
    if is_plain and cos is None:
        return is_short, True, 0
    return is_short, is_plain, 3 if is_short or extra is not None else 2


def _rotation(cos: Tensor | None, sin: Tensor | None) -> tuple[Tensor, Tensor] | None:
    return None if cos is None or sin is None else (cos, sin)


def _heads(packed: Tensor, prepared: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Views (batch, heads, seq, d_head) of queries, keys and values, the prepared ones if any."""
    batch, seq, width = packed.shape
    plain = packed.view(batch, seq, 3, num_heads, width // 3 // num_heads)
    parts = [*(prepared.unbind(2) if prepared.numel() else ())]
    parts += plain.unbind(2)[len(parts) :]
    query, key, value = (part.transpose(1, 2) for part in parts)
    return query, key, value


def _uses_cudnn() -> bool:
    """cuDNN's attention is the faster one from Hopper on, but its gradient has no fixed order of
    sums; torch's flash attention can have one."""
    return _has_fast_cudnn() and not torch.are_deterministic_algorithms_enabled()


@functools.cache
def _has_fast_cudnn() -> bool:
    return torch.cuda.get_device_capability() >= (9, 0) and torch.backends.cudnn.is_available()


@functools.cache
def _is_hopper() -> bool:
    return torch.cuda.get_device_capability()[0] == 9


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
