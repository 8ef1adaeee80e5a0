"""Fused kernels for the formulas inside layers, tested against them: in Triton for half precision
on CUDA, in the native core for float32 on CPUs. Otherwise torch's operations run."""

import contextlib
from collections.abc import Iterator
from importlib.util import find_spec

import torch
from torch import Tensor

from groundup.nn.kernels import cpu

# Without an origin, it is a folder named triton in the working directory.
HAS_TRITON = getattr(find_spec("triton"), "origin", None) is not None

if HAS_TRITON:
    from groundup.nn.kernels.cuda_train import cross_entropy as cuda_cross_entropy
    from groundup.nn.kernels.cuda_train import packed_attention as cuda_attention
    from groundup.nn.kernels.cuda_train import rounding as rounding
    from groundup.nn.kernels.cuda_train import swiglu


_are_enabled = True


def are_enabled() -> bool:
    """Whether layers and optimizers may use fused kernels."""
    return _are_enabled


@contextlib.contextmanager
def reference() -> Iterator[None]:
    """Run the plain formulas instead of fused kernels, for comparison."""
    global _are_enabled
    before, _are_enabled = _are_enabled, False
    try:
        yield
    finally:
        _are_enabled = before


def can_run_on(x: Tensor) -> bool:
    """Whether there are kernels for the device and dtype of x."""
    if x.is_cuda:
        return _are_enabled and HAS_TRITON and x.dtype in (torch.bfloat16, torch.float16)
    return is_plain_cpu(x)


def is_plain_cpu(x: Tensor) -> bool:
    """Whether the native core supports x; torch.compile fuses by itself, so gets the formulas."""
    is_plain = x.device.type == "cpu" and x.dtype == torch.float32
    return _are_enabled and is_plain and not torch.compiler.is_compiling()


def packed_attention(
    packed: Tensor,
    num_heads: int,
    rotation: tuple[Tensor, Tensor] | None = None,
    gains: tuple[Tensor, Tensor] | None = None,
    eps: float = 0.0,
    value_embedding: tuple[Tensor, Tensor] | None = None,
    document_starts: Tensor | None = None,
) -> Tensor:
    """Causal attention from packed queries, keys and values, (batch, seq, 3 · d_model), to (batch,
    seq, d_model). Value embeddings are supported on CUDA only.

    rotation: the cosines and sines of `RotaryEmbedding`.
    gains, eps: of the norms of queries and keys; gains are (d_head,) each.
    value_embedding: of each token, (batch, seq, d_model), and its factor.
    document_starts: the first position each token attends to, (batch, seq).
    """
    cos, sin = rotation or (None, None)
    if document_starts is not None:
        document_starts = document_starts.expand(packed.shape[:-1]).long().contiguous()
    if packed.is_cuda:
        sides = (
            cos,
            sin,
            *(gains or (None, None)),
            eps,
            *(value_embedding or (None, None)),
            document_starts,
        )
        return cuda_attention.packed_attention(packed, num_heads, *sides)[0]
    both = None if gains is None else torch.stack(gains).to(packed.dtype)
    mixed: Tensor = cpu.PackedAttention.apply(
        packed, cos, sin, both, eps, num_heads, document_starts
    )
    return mixed


def packed_swiglu(packed: Tensor) -> Tensor:
    """silu(gate) · up, from packed gate and up, (…, 2 · d_ff), to (…, d_ff)."""
    if packed.is_cuda:
        return swiglu.packed_swiglu(packed)
    gated: Tensor = cpu.PackedSwiGLU.apply(packed)
    return gated


def loss_and_gradient(
    logits: Tensor,
    targets: Tensor,
    z_loss: float,
    mtp: tuple[Tensor, Tensor] | None = None,
    rounded: tuple[Tensor, float] | None = None,
) -> Tensor | None:
    """Return the loss of each row and overwrite the logits with their gradient; see
    `linear_cross_entropy` for the formula. Do nothing and return None if no kernel supports it.

    rounded: a float8 (e5m2) buffer that receives gradient · factor, and the factor; CUDA only."""
    if logits.is_cuda and can_run_on(logits):
        losses = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
        more = *(mtp or (None, None)), *(rounded or ())
        cuda_cross_entropy.chunk_loss_and_gradient(logits, targets, losses, z_loss, *more)
        return losses
    if is_plain_cpu(logits) and not (mtp and z_loss):
        losses = cpu.loss_and_gradient(logits, targets, z_loss)
        if mtp is not None:
            _add_mtp_target(logits, targets, *mtp)
        return losses
    return None


def _add_mtp_target(gradient: Tensor, targets: Tensor, mtp: Tensor, weight: Tensor) -> None:
    """Change softmax - [target] to (1 + w) softmax - [target] - w [mtp], in place."""
    weights = torch.where(mtp < 0, 0.0, weight)
    gradient.mul_(1 + weights)
    gradient.scatter_add_(1, targets, weights)
    gradient.scatter_add_(1, mtp.clamp(min=0), -weights)
