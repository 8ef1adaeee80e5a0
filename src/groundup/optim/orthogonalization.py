"""The nearest orthogonal matrix by matmuls only, for Muon."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from groundup.nn.kernels import HAS_TRITON

_Coefficients: TypeAlias = tuple[tuple[float, float, float], ...]

# (a, b, c) of each step: odd quintics p that minimize max |1 - p(x)|, the first on [0.001, 1.01],
# each further one on the range of the previous one, widened by 1% for rounding.
COEFFICIENTS: _Coefficients = (
    (8.386893124345953, -24.371310642828792, 17.726411655627874),
    (4.143011984362458, -3.0186177669347534, 0.5526501809738614),
    (3.9311884327785886, -2.8741133975888387, 0.5367222643924121),
    (3.2827976652058584, -2.4165537064742697, 0.4865308891881089),
    (2.2849749755036135, -1.6323601559956618, 0.4030660869813083),
)


def orthogonalize(
    matrices: Float[Tensor, "... rows columns"],
) -> Float[Tensor, "... rows columns"]:
    """U Vᵀ for each matrix U S Vᵀ of a stack, roughly: singular values move close to 1, zeros stay.

        X <- G / ‖G‖;    five times:  X <- a X + b (X Xᵀ) X + c (X Xᵀ)² X

    A step maps each singular value by p(x) = a x + b x³ + c x⁵; those above 0.001 of the norm end
    near 1. Computed in bfloat16 on CUDA (by our kernel for bfloat16 input), else in float32 (by our
    CPU kernel if small) or float64. Tall matrices are transposed, so that X Xᵀ is the small matmul.
    """
    if matrices.shape[-2] > matrices.shape[-1]:
        return orthogonalize(matrices.mT).mT
    if kernel := _kernel_for(matrices):
        stack = matrices.reshape(-1, *matrices.shape[-2:])
        return kernel(stack, COEFFICIENTS).view_as(matrices)
    x = matrices.to(torch.promote_types(matrices.dtype, torch.float32))
    norms = x.square().sum(dim=(-2, -1), keepdim=True).sqrt()
    x = x / norms.clamp(min=torch.finfo(x.dtype).tiny)
    if x.is_cuda and x.dtype == torch.float32:
        x = x.bfloat16()
    # A single matrix is faster without the batch dimension.
    multiply, add = (torch.mm, torch.addmm) if x.ndim == 2 else (torch.bmm, torch.baddbmm)
    x = x if x.ndim == 2 else x.reshape(-1, *matrices.shape[-2:])
    for a, b, c in COEFFICIENTS:
        gram = multiply(x, x.mT)
        polynomial = add(gram, gram, gram, beta=b, alpha=c)
        x = add(x, polynomial, x, beta=a)
    return x.reshape(matrices.shape)


def orthogonalize_each(
    matrices: Float[Tensor, "stack rows columns"],
) -> Float[Tensor, "stack rows columns"]:
    """`orthogonalize`, with bits that depend only on each matrix: one by one without our kernels,
    because the order of torch's sums depends on the shape."""
    if not len(matrices) or _kernel_for(matrices):
        return orthogonalize(matrices)
    return torch.stack([orthogonalize(matrix) for matrix in matrices])


def _kernel_for(matrices: Tensor) -> Callable[[Tensor, _Coefficients], Tensor] | None:
    """Our kernel for these matrices, if any."""
    if HAS_TRITON and matrices.is_cuda and matrices.dtype == torch.bfloat16:
        from groundup.nn.kernels.cuda_train import muon

        return muon.orthogonalize
    is_plain = matrices.device.type == "cpu" and matrices.dtype == torch.float32
    rows, columns = matrices.shape[-2:]
    # Too small for multithreaded matmuls: each thread gets whole matrices.
    is_small = 0 < rows * columns * min(rows, columns) <= 1 << 26
    if is_plain and is_small and not matrices.requires_grad:
        from groundup.nn.kernels import cpu

        return cpu.orthogonalize
    return None
