"""Fused kernels for the layers' inner formulas, each held equal to them: in Triton for half
precision on CUDA, in the native core for float32 on a CPU. Elsewhere torch's operations run."""

from importlib.util import find_spec

import torch
from torch import Tensor

from groundup.nn.kernels import cpu

HAS_TRITON = find_spec("triton") is not None

if HAS_TRITON:
    from groundup.nn.kernels.cuda_train import cross_entropy as cuda_cross_entropy
    from groundup.nn.kernels.cuda_train import gating as cuda_gating
    from groundup.nn.kernels.cuda_train import packed_attention as cuda_attention
    from groundup.nn.kernels.cuda_train import query_key_norm as cuda_query_key_norm


def can_run_on(x: Tensor) -> bool:
    """Whether there is a kernel for such values."""
    if x.is_cuda:
        return HAS_TRITON and x.dtype in (torch.bfloat16, torch.float16)
    return is_plain_cpu(x)


def is_plain_cpu(x: Tensor) -> bool:
    """Whether the native core takes `x`. A compiler fuses by itself, so it gets the formulas."""
    is_plain = x.device.type == "cpu" and x.dtype == torch.float32
    return is_plain and not torch.compiler.is_compiling()


def packed_attention(
    packed: Tensor, cos: Tensor | None, sin: Tensor | None, num_heads: int
) -> Tensor:
    """Rotation and causal attention: (batch, seq, 3 · d_model) to (batch, seq, d_model).

    packed: queries, keys and values side by side.
    cos, sin: the tables of `RotaryEmbedding`; None for no rotation.
    """
    if packed.is_cuda:
        return cuda_attention.packed_attention(packed, cos, sin, num_heads)[0]
    mixed: Tensor = cpu.PackedAttention.apply(packed, cos, sin, num_heads)
    return mixed


def packed_query_key_norm(
    packed: Tensor, query_gain: Tensor, key_gain: Tensor, eps: float
) -> Tensor:
    """Queries and keys normalized in each head, in projections as `packed_attention` takes them; on
    CUDA alone.

    query_gain, key_gain: of the norms, (d_head,).   eps: under their roots.
    """
    return cuda_query_key_norm.packed_query_key_norm(packed, query_gain, key_gain, eps)


def packed_swiglu(packed: Tensor) -> Tensor:
    """silu(gate) · up: (…, 2 · d_ff), gate and up side by side, to (…, d_ff)."""
    if packed.is_cuda:
        return cuda_gating.packed_swiglu(packed)
    gated: Tensor = cpu.PackedSwiGLU.apply(packed)
    return gated


def loss_and_gradient(
    logits: Tensor, targets: Tensor, soft_cap: float | None, z_loss: float
) -> Tensor | None:
    """The loss of each row of logits, which its gradient is written over; see
    `linear_cross_entropy` for the formula. None, and nothing done, where no kernel fits."""
    if logits.is_cuda and can_run_on(logits):
        losses = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
        cuda_cross_entropy.chunk_loss_and_gradient(
            logits, targets, losses, soft_cap, z_loss, scale=1.0
        )
        return losses
    if soft_cap is None and is_plain_cpu(logits):
        return cpu.loss_and_gradient(logits, targets, z_loss)
    return None
