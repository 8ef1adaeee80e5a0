"""The output layer and its cross-entropy as one operation that never holds all logits.

Rows are taken in chunks: logits, softmax, gradient of the logits, and the two matmuls that carry it
on, while the chunk is still in the cache. Backward has then nothing left to compute.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from groundup.errors import ConfigError, DataError, check_choice
from groundup.nn import float8, kernels
from groundup.nn.limits import logit_chunk_bytes, logit_chunk_rows
from groundup.nn.losses import check_targets, cross_entropy, in_float32_at_least
from groundup.nn.losses import z_loss as mean_z_loss

# On gradients of logits, so that those of up to 14 fit into e5m2. At most they are 1 + the weight
# of the later target, which is at most 10, + 2 z_loss log Z.
_GRADIENT_FACTOR = 2.0**12
_MOST_Z_LOSS = 0.01


def linear_cross_entropy(
    hidden: Float[Tensor, "... d_model"],
    weight: Float[Tensor, "vocab_size d_model"],
    targets: Int[Tensor, "..."],
    *,
    z_loss: float = 0.0,
    reduction: Literal["mean", "sum"] = "mean",
    later: tuple[Int[Tensor, "..."], Float[Tensor, ""]] | None = None,
    chunk_rows: int | None = None,
    in_float8: bool = False,
) -> Float[Tensor, ""]:
    """Mean or sum over rows of cross-entropy + z_loss · (log Z)², for l = hidden weightᵀ:

        log Z = logsumexp(l);   loss = log Z - l_target + z_loss · (log Z)²

    With a `later` target, the same logits learn that one too: the gradient, and the gradient alone,
    is that of loss + weight · (log Z - l_later), so that losses can be compared.

    Matmuls are in the autocast type where autocast is on; softmax, loss and the sum of the weight's
    gradient are float32 (float64 for such inputs). It has no second derivative. Equal to
    `linear_cross_entropy_reference` up to rounding.

    hidden: what the output layer sees.   weight: the output layer.   targets: an id for each row.
    z_loss: weight of (log Z)².
    later: a second id for each row, or -1 for none, and the weight of its cross-entropy.
    chunk_rows: rows of logits at once; by default what `nn.limits` says.
    in_float8: compute logits and their way back to `hidden`, which a norm returned, in float8 where
        there are kernels for it.
    """
    _check(hidden, weight, targets, z_loss, reduction, chunk_rows)
    dtype = _matmul_dtype(hidden, weight)
    rows = targets.numel()
    if chunk_rows is None:
        chunk_rows = _default_chunk_rows(rows, weight.shape[0], dtype, weight.device)
    if in_float8:
        chunk_rows += -chunk_rows % float8.MULTIPLE
    recording = torch.is_grad_enabled()
    total: Tensor = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden,
        weight,
        targets,
        z_loss,
        *(later or (None, None)),
        chunk_rows,
        dtype,
        in_float8,
        recording and hidden.requires_grad,
        recording and weight.requires_grad,
    )
    return total if reduction == "sum" else total / rows


def linear_cross_entropy_reference(
    hidden: Float[Tensor, "... d_model"],
    weight: Float[Tensor, "vocab_size d_model"],
    targets: Int[Tensor, "..."],
    *,
    z_loss: float = 0.0,
    reduction: Literal["mean", "sum"] = "mean",
) -> Float[Tensor, ""]:
    """The formula of `linear_cross_entropy` as it is read, with all logits at once."""
    logits = in_float32_at_least(hidden @ weight.T)
    mean = cross_entropy(logits, targets) + z_loss * mean_z_loss(logits)
    return mean if reduction == "mean" else mean * targets.numel()


class _LinearCrossEntropy(torch.autograd.Function):
    """The sum over all rows, with both gradients made on the way forward."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        z_loss: float,
        later: Tensor | None,
        later_weight: Tensor | None,
        chunk_rows: int,
        dtype: torch.dtype,
        in_float8: bool,
        hidden_learns: bool,
        weight_learns: bool,
    ) -> Tensor:
        rows = hidden.reshape(-1, hidden.shape[-1]).to(dtype)
        ids = targets.reshape(-1, 1).long()
        later_ids = None if later is None else later.reshape(-1, 1).long()
        columns = weight.to(dtype)
        wide = torch.promote_types(dtype, torch.float32)

        total = rows.new_zeros((), dtype=wide)
        d_rows = torch.empty_like(rows) if hidden_learns else None
        d_columns = torch.zeros_like(columns, dtype=wide) if weight_learns else None
        buffer = rows.new_empty((min(chunk_rows, len(rows)), len(columns)))
        # A compiler plans memory by itself, and torch 2.11's loses what is written into a slice.
        in_place = not torch.compiler.is_compiling()
        parts = []
        layer = None
        in_float8 &= in_place and z_loss <= _MOST_Z_LOSS
        if in_float8 and d_rows is not None and float8.takes(rows, len(columns)):
            layer = _Float8Layer(rows, columns, buffer)
        # Operands have their type already; autocast would only cast the float32 sums down.
        with torch.autocast(rows.device.type, enabled=False):
            for start in range(0, len(rows), chunk_rows):
                part = slice(start, start + chunk_rows)
                chunk = rows[part]
                if layer is not None:
                    logits = layer.logits(part, buffer[: len(chunk)])
                else:
                    out = buffer[: len(chunk)] if in_place else None
                    logits = torch.mm(chunk, columns.T, out=out)
                if d_rows is None and d_columns is None:
                    total = total + _chunk_loss(logits, ids[part], z_loss)
                    continue
                of_later = None
                if later_ids is not None and later_weight is not None:
                    of_later = later_ids[part], later_weight
                loss, d_logits = _chunk_loss_and_gradient(
                    logits,
                    ids[part],
                    z_loss,
                    of_later,
                    None if layer is None else layer.d_logits(len(chunk)),
                )
                total = total + loss
                if layer is not None and d_rows is not None:
                    layer.d_rows(d_rows[part])
                elif d_rows is not None:
                    out = d_rows[part] if in_place else None
                    parts.append(torch.mm(d_logits, columns, out=out))
                if d_columns is not None:
                    d_columns = _add_matmul(d_columns, d_logits.T, chunk)
        if parts and not in_place:
            d_rows = torch.cat(parts)

        ctx.save_for_backward(d_rows, d_columns)
        ctx.hidden_like, ctx.weight_dtype = (hidden.shape, hidden.dtype), weight.dtype
        return total

    @staticmethod
    def backward(ctx: Any, d_total: Tensor) -> tuple[Tensor | None, ...]:
        # once_differentiable would let a constant d_total pass, and with it a second derivative
        # that is silently zero.
        if torch.is_grad_enabled():
            raise ConfigError(
                "linear_cross_entropy has no second derivative: where create_graph is wanted, "
                "compute the loss with linear_cross_entropy_reference"
            )
        d_rows, d_columns = ctx.saved_tensors
        shape, dtype = ctx.hidden_like
        d_hidden = None if d_rows is None else _times(d_rows, d_total).to(dtype).view(shape)
        d_weight = None if d_columns is None else _times(d_columns, d_total).to(ctx.weight_dtype)
        return d_hidden, d_weight, *[None] * 9


class _Float8Layer:
    """Both matmuls of an output layer's chunks with rows and columns in float8, all but the one
    that adds to the weight's gradient."""

    def __init__(self, rows: Tensor, columns: Tensor, buffer: Tensor) -> None:
        self._rows = kernels.rounding.rounded_by(rows, float8.INPUT_FACTOR)
        self._columns, self._transposed = kernels.rounding.rounded_both_ways(
            columns, float8.WEIGHT_FACTOR
        )
        # The probability of most ids is tiny: these need bits of exponent rather than of mantissa.
        self._d_logits = torch.empty_like(buffer, dtype=torch.float8_e5m2)
        factors = (float8.INPUT_FACTOR, _GRADIENT_FACTOR)
        self._scales = [torch.full((), 1 / factor, device=rows.device) for factor in factors]

    def logits(self, part: slice, out: Tensor) -> Tensor:
        left = float8.Rounded(self._rows[part], self._scales[0])
        return float8.matmul(left, self._columns, out=out)

    def d_logits(self, num_rows: int) -> tuple[Tensor, float]:
        """What the gradients of a chunk's logits, by a factor, are to be written into as well."""
        return self._d_logits[:num_rows], _GRADIENT_FACTOR

    def d_rows(self, out: Tensor) -> None:
        left = float8.Rounded(self._d_logits[: len(out)], self._scales[1])
        float8.matmul(left, self._transposed, is_precise=True, out=out)


def _chunk_loss(logits: Tensor, targets: Tensor, z_loss: float) -> Tensor:
    """The summed loss of one chunk, whose logits are used up; `targets` is a column of ids."""
    wide = in_float32_at_least(logits)
    chosen = wide.gather(1, targets)
    top = wide.amax(dim=1, keepdim=True)
    log_z = top + wide.sub_(top).exp_().sum(dim=1, keepdim=True).log_()
    return _sum_of_losses(log_z, chosen, z_loss)


def _chunk_loss_and_gradient(
    logits: Tensor,
    targets: Tensor,
    z_loss: float,
    later: tuple[Tensor, Tensor] | None = None,
    rounded: tuple[Tensor, float] | None = None,
) -> tuple[Tensor, Tensor]:
    """The summed loss of one chunk, and its gradient, written over the logits; `rounded` as in
    `kernels.loss_and_gradient`."""
    losses = kernels.loss_and_gradient(logits, targets, z_loss, later, rounded)
    if losses is not None:
        return losses.sum(), logits
    return _chunk_loss_and_gradient_in_passes(logits, targets, z_loss, later)


def _chunk_loss_and_gradient_in_passes(
    logits: Tensor,
    targets: Tensor,
    z_loss: float,
    later: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """By torch's own operations, as the formula has it:

        d l_j = softmax(l)_j · (1 + 2 z_loss log Z + w) - [j = target] - w [j = later]

    with w the weight of the later target, or 0 where there is none.

    Passes over the logits are what this costs, so there are as few as torch allows.
    """
    wide = in_float32_at_least(logits)
    top = wide.amax(dim=1, keepdim=True)
    chosen = wide.gather(1, targets)
    # torch's softmax keeps a row in the cache for all its passes. On a CPU it may write over its
    # input, and the greatest probability, which is never tiny, tells log Z.
    in_place = wide.device.type == "cpu" and not torch.compiler.is_compiling()
    wide = torch.softmax(wide, dim=1, out=wide if in_place else None)
    log_z = top - wide.amax(dim=1, keepdim=True).log_()
    loss = _sum_of_losses(log_z, chosen, z_loss)
    if later is not None:
        ids, weight = later
        weights = torch.where(ids < 0, 0.0, weight.to(wide.dtype))
        wide.mul_(1 + 2 * z_loss * log_z + weights)
        wide.scatter_add_(1, ids.clamp(min=0), -weights)
    elif z_loss:
        wide.mul_(1 + 2 * z_loss * log_z)
    wide.scatter_add_(1, targets, torch.full_like(chosen, -1.0))
    return loss, logits if wide is logits else logits.copy_(wide)


def _times(x: Tensor, factor: Tensor) -> Tensor:
    # On CUDA multiplying by a number that lies on the device is a slow, unaligned kernel.
    return torch._foreach_mul([x], factor.to(x.dtype))[0] if x.is_cuda else x * factor


def _sum_of_losses(log_z: Tensor, chosen: Tensor, z_loss: float) -> Tensor:
    losses = log_z - chosen
    if z_loss:
        losses = losses + z_loss * log_z.square()
    return losses.sum()


def _add_matmul(total: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """total + left right, summed in the type of `total` and, unless compiled, written over it."""
    if torch.compiler.is_compiling():
        return total + left @ right
    if total.dtype == left.dtype:
        return total.addmm_(left, right)
    if total.is_cuda:
        return torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    return total.add_(left @ right)


def _matmul_dtype(hidden: Tensor, weight: Tensor) -> torch.dtype:
    dtype = torch.promote_types(hidden.dtype, weight.dtype)
    kind = hidden.device.type
    if dtype != torch.float64 and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return dtype


def _default_chunk_rows(
    rows: int, vocab_size: int, dtype: torch.dtype, device: torch.device
) -> int:
    memory_bytes = None
    if device.type == "cuda":
        memory_bytes = torch.cuda.get_device_properties(device).total_memory
    chunk_bytes = logit_chunk_bytes(device.type, memory_bytes)
    return logit_chunk_rows(rows, vocab_size * dtype.itemsize, chunk_bytes)


def _check(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    z_loss: float,
    reduction: str,
    chunk_rows: int | None,
) -> None:
    if weight.ndim != 2 or hidden.ndim == 0 or hidden.shape[-1] != weight.shape[-1]:
        raise DataError(
            f"hidden of shape {tuple(hidden.shape)} does not fit a weight of shape "
            f"{tuple(weight.shape)}: give (…, d_model) and (vocab_size, d_model)"
        )
    check_targets(targets, hidden.shape[:-1], hidden.shape)
    if not 0 <= z_loss < math.inf:
        raise ConfigError(f"z_loss must be at least 0 and finite, got {z_loss}")
    check_choice("reduction", reduction, ("mean", "sum"))
    if chunk_rows is not None and chunk_rows < 1:
        raise ConfigError(f"chunk_rows must be at least 1, got {chunk_rows}")
