"""The output layer and cross-entropy as one operation that never materializes all logits.

Rows are processed in chunks: logits, softmax, gradient of the logits and the two matmuls that
propagate it, while the chunk is still in the cache. Backward has nothing left to compute.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from groundup.errors import ConfigError, DataError
from groundup.nn import float8, kernels
from groundup.nn.limits import logit_chunk_bytes, logit_chunk_rows
from groundup.nn.losses import at_least_float32, check_targets, cross_entropy, logsumexp
from groundup.nn.losses import z_loss as mean_z_loss

# Scale of the logits' gradients: values up to 14 then fit in e5m2. The largest possible one is 1 +
# the weight of multi-token prediction (at most 10) + 2 z_loss log Z.
_GRADIENT_FACTOR = 2.0**12
_MAX_Z_LOSS = 0.01


def linear_cross_entropy(
    hidden: Float[Tensor, "... d_model"],
    weight: Float[Tensor, "vocab_size d_model"],
    targets: Int[Tensor, "..."],
    *,
    z_loss: float = 0.0,
    reduction: Literal["mean", "sum"] = "mean",
    mtp: tuple[Int[Tensor, "..."], Float[Tensor, ""]] | None = None,
    chunk_rows: int | None = None,
    in_float8: bool = False,
) -> Float[Tensor, ""]:
    """Mean or sum over rows of cross-entropy + z_loss · (log Z)², for l = hidden weightᵀ:

        log Z = logsumexp(l);   loss = log Z - l_target + z_loss · (log Z)²

    With `mtp` (multi-token prediction), the gradient is that of loss + weight · (log Z -
    l_mtp), but the returned loss leaves that term out, so that losses stay comparable.

    Matmuls use the autocast dtype if autocast is on; softmax, loss and the accumulated weight
    gradient are float32 (float64 for float64 inputs). There is no second derivative. Equal to
    `linear_cross_entropy_reference` up to rounding, which is used under torch.compile.

    mtp: a second target id per row, or -1 for none, and the weight of its cross-entropy.
    chunk_rows: rows of logits per chunk; chosen by `nn.limits` by default.
    in_float8: compute logits and the gradient of `hidden` in float8, if kernels support it;
        `hidden` must be the output of a norm.
    """
    if weight.ndim != 2 or hidden.ndim == 0 or hidden.shape[-1] != weight.shape[-1]:
        raise DataError(
            f"hidden of shape {tuple(hidden.shape)} does not fit a weight of shape "
            f"{tuple(weight.shape)}: give (…, d_model) and (vocab_size, d_model)"
        )
    check_targets(targets, hidden.shape[:-1], hidden.shape)
    if torch.compiler.is_compiling():
        return linear_cross_entropy_reference(
            hidden, weight, targets, z_loss=z_loss, reduction=reduction, mtp=mtp
        )
    dtype = _matmul_dtype(hidden, weight)
    rows = targets.numel()
    if chunk_rows is None:
        chunk_rows = _default_chunk_rows(rows, weight.shape[0], dtype, weight.device)
    if in_float8:
        chunk_rows += -chunk_rows % float8.MULTIPLE
    total: Tensor = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden,
        weight,
        targets,
        *(mtp or (None, None)),
        _Options(z_loss, chunk_rows, dtype, in_float8, torch.is_grad_enabled()),
    )
    return total if reduction == "sum" else total / rows


def linear_cross_entropy_reference(
    hidden: Float[Tensor, "... d_model"],
    weight: Float[Tensor, "vocab_size d_model"],
    targets: Int[Tensor, "..."],
    *,
    z_loss: float = 0.0,
    reduction: Literal["mean", "sum"] = "mean",
    mtp: tuple[Int[Tensor, "..."], Float[Tensor, ""]] | None = None,
) -> Float[Tensor, ""]:
    """The formula of `linear_cross_entropy`, with all logits at once."""
    logits = at_least_float32(hidden @ weight.T)
    mean = cross_entropy(logits, targets) + z_loss * mean_z_loss(logits)
    if mtp is not None:
        ids, mtp_weight = mtp
        losses = logsumexp(logits) - logits.gather(-1, ids.clamp(min=0)[..., None])[..., 0]
        added = mtp_weight * torch.where(ids < 0, 0.0, losses).mean()
        mean = mean + added - added.detach()
    return mean if reduction == "mean" else mean * targets.numel()


class _Options(NamedTuple):
    z_loss: float
    chunk_rows: int
    dtype: torch.dtype
    in_float8: bool
    is_recording: bool


class _LinearCrossEntropy(torch.autograd.Function):
    """The sum over all rows; forward computes both gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        mtp: Tensor | None,
        mtp_weight: Tensor | None,
        options: _Options,
    ) -> Tensor:
        z_loss, chunk_rows, dtype = options[:3]
        rows = hidden.reshape(-1, hidden.shape[-1]).to(dtype)
        ids = targets.reshape(-1, 1).long().contiguous()
        mtp_ids = None if mtp is None else mtp.reshape(-1, 1).long().contiguous()
        columns = weight.to(dtype)
        wide = torch.promote_types(dtype, torch.float32)

        total = rows.new_zeros((), dtype=wide)
        d_rows = d_columns = None
        if options.is_recording and hidden.requires_grad:
            d_rows = torch.empty_like(rows)
        if options.is_recording and weight.requires_grad:
            d_columns = torch.zeros_like(columns, dtype=wide)
        buffer = rows.new_empty((min(chunk_rows, len(rows)), len(columns)))
        wants_float8 = options.in_float8 and z_loss <= _MAX_Z_LOSS and d_rows is not None
        is_float8 = wants_float8 and float8.is_supported(rows, len(columns))
        layer = (_Float8Output if is_float8 else _Output)(rows, columns, buffer)
        # Operands already have their dtype; autocast would only downcast the float32 sums.
        with torch.autocast(rows.device.type, enabled=False):
            for start in range(0, len(rows), chunk_rows):
                part = slice(start, start + chunk_rows)
                logits = layer.logits(part)
                if d_rows is None and d_columns is None:
                    total = total + _chunk_loss(logits, ids[part], z_loss)
                    continue
                of_mtp = None
                if mtp_ids is not None and mtp_weight is not None:
                    of_mtp = mtp_ids[part], mtp_weight
                rounded = layer.rounded(len(logits))
                losses = kernels.loss_and_gradient(logits, ids[part], z_loss, of_mtp, rounded)
                if losses is None:
                    losses = _loss_and_gradient(logits, ids[part], z_loss, of_mtp)
                total = total + losses.sum()
                if d_rows is not None:
                    layer.d_rows(logits, d_rows[part])
                if d_columns is not None:
                    _add_matmul_(d_columns, logits.T, rows[part])

        ctx.save_for_backward(d_rows, d_columns)
        ctx.hidden_like, ctx.weight_dtype = (hidden.shape, hidden.dtype), weight.dtype
        return total

    @staticmethod
    def backward(ctx: Any, d_total: Tensor) -> tuple[Tensor | None, ...]:
        # once_differentiable accepts a constant d_total, which would make the second derivative
        # silently zero.
        if torch.is_grad_enabled():
            raise ConfigError(
                "linear_cross_entropy has no second derivative: with create_graph, compute the "
                "loss with linear_cross_entropy_reference"
            )
        d_rows, d_columns = ctx.saved_tensors
        shape, dtype = ctx.hidden_like
        d_hidden = None if d_rows is None else _times(d_rows, d_total).to(dtype).view(shape)
        d_weight = None if d_columns is None else _times(d_columns, d_total).to(ctx.weight_dtype)
        return d_hidden, d_weight, None, None, None, None


class _Output:
    """The matmuls of a chunk, except the one that accumulates the weight gradient.

    buffer: receives the logits of a chunk.
    """

    def __init__(self, rows: Tensor, columns: Tensor, buffer: Tensor) -> None:
        self._rows, self._columns, self._buffer = rows, columns, buffer

    def logits(self, part: slice) -> Tensor:
        chunk = self._rows[part]
        return torch.mm(chunk, self._columns.T, out=self._buffer[: len(chunk)])

    def rounded(self, num_rows: int) -> tuple[Tensor, float] | None:
        """A second buffer for the logits' gradients, and the factor they are scaled by in it."""
        return None

    def d_rows(self, d_logits: Tensor, out: Tensor) -> None:
        torch.mm(d_logits, self._columns, out=out)


class _Float8Output(_Output):
    """The same, with rows and columns in float8."""

    def __init__(self, rows: Tensor, columns: Tensor, buffer: Tensor) -> None:
        small = float8.rounded(rows, float8.INPUT_FACTOR)
        both = kernels.rounding.rounded_both_ways(columns, float8.WEIGHT_FACTOR)
        super().__init__(small.values, both[0], buffer)
        self._transposed = both[1]
        # Most ids have tiny probabilities: exponent bits matter more than mantissa bits.
        self._d_logits = torch.empty_like(buffer, dtype=torch.float8_e5m2)
        factors = (float8.INPUT_FACTOR, _GRADIENT_FACTOR)
        self._scales = [torch.full((), 1 / factor, device=rows.device) for factor in factors]

    def logits(self, part: slice) -> Tensor:
        left = float8.Rounded(self._rows[part], self._scales[0])
        return float8.matmul(left, self._columns, out=self._buffer[: len(left.values)])

    def rounded(self, num_rows: int) -> tuple[Tensor, float] | None:
        return self._d_logits[:num_rows], _GRADIENT_FACTOR

    def d_rows(self, d_logits: Tensor, out: Tensor) -> None:
        left = float8.Rounded(self._d_logits[: len(out)], self._scales[1])
        float8.matmul(left, self._transposed, is_precise=True, out=out)


def _chunk_loss(logits: Tensor, targets: Tensor, z_loss: float) -> Tensor:
    """Return the summed loss of a chunk; `targets` is a column of ids. Overwrites the logits."""
    wide = at_least_float32(logits)
    chosen = wide.gather(1, targets)
    top = wide.amax(dim=1, keepdim=True)
    log_z = top + wide.sub_(top).exp_().sum(dim=1, keepdim=True).log_()
    return _losses(log_z, chosen, z_loss).sum()


def _loss_and_gradient(
    logits: Tensor, targets: Tensor, z_loss: float, mtp: tuple[Tensor, Tensor] | None
) -> Tensor:
    """Return the loss of each row and overwrite the logits with their gradient, in plain torch:

        d l_j = softmax(l)_j · (1 + 2 z_loss log Z + w) - [j = target] - w [j = mtp]

    with w the weight of `mtp`, or 0 without it. Passes over the logits dominate
    the time, so there are as few as torch allows.
    """
    wide = at_least_float32(logits)
    top = wide.amax(dim=1, keepdim=True)
    chosen = wide.gather(1, targets)
    # torch's softmax keeps a row in the cache during all its passes, and on a CPU it can run in
    # place. log Z follows from the largest probability, which is never tiny.
    wide = torch.softmax(wide, dim=1, out=wide if wide.device.type == "cpu" else None)
    log_z = top - wide.amax(dim=1, keepdim=True).log_()
    losses = _losses(log_z, chosen, z_loss)
    if mtp is not None:
        ids, weight = mtp
        weights = torch.where(ids < 0, 0.0, weight.to(wide.dtype))
        wide.mul_(1 + 2 * z_loss * log_z + weights)
        wide.scatter_add_(1, ids.clamp(min=0), -weights)
    elif z_loss:
        wide.mul_(1 + 2 * z_loss * log_z)
    wide.scatter_add_(1, targets, torch.full_like(chosen, -1.0))
    if wide is not logits:
        logits.copy_(wide)
    return losses


def _losses(log_z: Tensor, chosen: Tensor, z_loss: float) -> Tensor:
    losses = log_z - chosen
    return losses + z_loss * log_z.square() if z_loss else losses


def _times(x: Tensor, factor: Tensor) -> Tensor:
    # On CUDA, multiplying by a scalar tensor runs a slow kernel with unaligned access.
    return torch._foreach_mul([x], factor.to(x.dtype))[0] if x.is_cuda else x * factor


def _add_matmul_(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left right to `total`, accumulated in its dtype."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    elif total.is_cuda:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total.add_(left @ right)


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
