"""Fast twins of the layers' inner formulas, each held equal to them: in Triton for half precision
on CUDA, in the native core for float32 on a CPU. Elsewhere torch's own operations run.
"""

from importlib.util import find_spec

import torch
from torch import Tensor

from groundup.nn.kernels import cpu

HAS_TRITON = find_spec("triton") is not None

if HAS_TRITON:
    from groundup.nn.kernels.cuda_train import gating as cuda_gating
    from groundup.nn.kernels.cuda_train import packed_attention as cuda_attention


def can_run_on(x: Tensor) -> bool:
    """Whether there is a twin for such values."""
    if x.is_cuda:
        return HAS_TRITON and x.dtype in (torch.bfloat16, torch.float16)
    return is_plain_cpu(x)


def is_plain_cpu(x: Tensor) -> bool:
    """A compiler makes its own passes, so it gets the formulas."""
    is_plain = x.device.type == "cpu" and x.dtype == torch.float32
    return is_plain and not torch.compiler.is_compiling()


def packed_attention(
    packed: Tensor, cos: Tensor | None, sin: Tensor | None, num_heads: int
) -> Tensor:
    """Rotation and causal attention on (batch, seq, 3 · d_model)."""
    if packed.is_cuda:
        return cuda_attention.packed_attention(packed, cos, sin, num_heads)[0]
    mixed: Tensor = cpu.PackedAttention.apply(packed, cos, sin, num_heads)
    return mixed


def packed_swiglu(packed: Tensor) -> Tensor:
    """silu(gate) · up on (…, 2 · d_ff)."""
    if packed.is_cuda:
        return cuda_gating.packed_swiglu(packed)
    gated: Tensor = cpu.PackedSwiGLU.apply(packed)
    return gated


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """`RMSNorm` on a CPU."""
    normal: Tensor = cpu.NormByRootMeanSquare.apply(x, gain, eps)
    return normal


def rms_norm_of_sum(x: Tensor, addend: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """A sum and its norm on a CPU."""
    total, normal = cpu.NormOfSum.apply(x, addend, gain, eps)
    return total, normal
