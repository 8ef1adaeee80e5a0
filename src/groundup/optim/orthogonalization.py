"""The nearest orthogonal matrix, by matmuls alone: what Muon makes of a momentum."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from groundup.nn.kernels import HAS_TRITON
from groundup.runtime import is_small_to_orthogonalize

_Coefficients: TypeAlias = tuple[tuple[float, float, float], ...]

# Singular values from here on, as fractions of the Frobenius norm, arrive at 1; smaller ones rise
# by the same factor and stay below it.
_LOWEST = 1e-3
# Rounding, above all bfloat16's, may carry a singular value over the top of its interval, beyond
# which the polynomials soon run away.
_MARGIN = 1.01


def orthogonalize(
    matrices: Float[Tensor, "... rows columns"], num_steps: int = 5
) -> Float[Tensor, "... rows columns"]:
    """U Vᵀ for each matrix U S Vᵀ, roughly: every singular value moves close to 1, zeros stay.

        X <- G / ‖G‖;    num_steps times:  X <- a X + b (X Xᵀ) X + c (X Xᵀ)² X

    A step does to each singular value what p(x) = a x + b x³ + c x⁵ does to a number; the
    coefficients are `quintic_coefficients`. Computed in bfloat16 on CUDA (by our kernels if the
    matrices are so), else in float32 (on a CPU, where they are small, by ours) or in float64 for
    such matrices, and returned so. With more rows than columns it is Gᵀ that goes through it, for
    X Xᵀ to be the small matmul.

    matrices: one, or a stack of one shape.
    num_steps: more come closer to orthogonal.
    """
    if matrices.shape[-2] > matrices.shape[-1]:
        return orthogonalize(matrices.mT, num_steps).mT
    if kernel := _kernel_for(matrices):
        stack = matrices.reshape(-1, *matrices.shape[-2:])
        return kernel(stack, quintic_coefficients(num_steps)).view_as(matrices)
    x = matrices.to(torch.promote_types(matrices.dtype, torch.float32))
    norms = x.square().sum(dim=(-2, -1), keepdim=True).sqrt()
    x = x / norms.clamp(min=torch.finfo(x.dtype).tiny)
    if x.is_cuda and x.dtype == torch.float32:
        x = x.bfloat16()
    # One matrix costs less without the dimension of a stack.
    multiply, add = (torch.mm, torch.addmm) if x.ndim == 2 else (torch.bmm, torch.baddbmm)
    x = x if x.ndim == 2 else x.reshape(-1, *matrices.shape[-2:])
    for a, b, c in quintic_coefficients(num_steps):
        gram = multiply(x, x.mT)
        polynomial = add(gram, gram, gram, beta=b, alpha=c)
        x = add(x, polynomial, x, beta=a)
    return x.reshape(matrices.shape)


def orthogonalize_each(
    matrices: Float[Tensor, "stack rows columns"], num_steps: int = 5
) -> Float[Tensor, "stack rows columns"]:
    """`orthogonalize` of one matrix after the other: the bits of each depend on it alone.

    In a stack they do not, but by our kernels: how torch adds up many numbers depends on how many
    there are.

    matrices, num_steps: as there.
    """
    if not len(matrices) or _kernel_for(matrices):
        return orthogonalize(matrices, num_steps)
    return torch.stack([orthogonalize(matrix, num_steps) for matrix in matrices])


def _kernel_for(matrices: Tensor) -> Callable[[Tensor, _Coefficients], Tensor] | None:
    """The kernel of ours that takes such matrices, each by itself, if there is one."""
    if HAS_TRITON and matrices.is_cuda and matrices.dtype == torch.bfloat16:
        from groundup.nn.kernels.cuda_train import muon

        return muon.orthogonalize
    is_plain = matrices.device.type == "cpu" and matrices.dtype == torch.float32
    is_small = is_small_to_orthogonalize(*matrices.shape[-2:])
    if is_plain and is_small and not matrices.requires_grad:
        from groundup.nn.kernels import cpu

        return cpu.orthogonalize
    return None


@functools.cache
def quintic_coefficients(num_steps: int) -> _Coefficients:
    """The (a, b, c) of each step, chosen so that the worst singular value ends closest to 1.

    The first step knows only that all lie in [_LOWEST, 1]; its best polynomial takes them into
    some [1 - e, 1 + e], for which the second step has a better one, and so on. To look one step
    ahead is enough: the narrower the interval a step leaves, the better all that follow can do.
    """
    low, high = _LOWEST, _MARGIN
    steps = []
    for _ in range(num_steps):
        a, b, c, error = _best_quintic(low, high)
        steps.append((a, b, c))
        low, high = 1 - error, (1 + error) * _MARGIN
    return tuple(steps)


def _best_quintic(low: float, high: float) -> tuple[float, float, float, float]:
    """a, b, c and the error of the odd quintic with the least max |1 - p(x)| on [low, high].

    By Chebyshev, p is best when 1 - p reaches ± its maximum four times in turn. The ends are two
    of the points and the extrema of p between them the others; Remez' exchange finds both: solve
    for p with the error at the guessed points, take the extrema of that p as the next guess.
    """
    inner, outer = (3 * low + high) / 4, (low + 3 * high) / 4
    a = b = c = error = math.nan
    for _ in range(50):
        points = torch.tensor([low, inner, outer, high], dtype=torch.float64, device="cpu")
        signs = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64, device="cpu")
        system = torch.stack([points, points**3, points**5, signs], dim=1)
        a, b, c, error = torch.linalg.solve(system, torch.ones_like(points)).tolist()
        # p'(x) = a + 3 b x² + 5 c x⁴ vanishes at the extrema.
        root = math.sqrt(9 * b * b - 20 * a * c)
        last = inner, outer
        inner, outer = (math.sqrt((-3 * b + sign * root) / (10 * c)) for sign in (-1, 1))
        if math.isclose(inner, last[0], rel_tol=1e-9) and math.isclose(
            outer, last[1], rel_tol=1e-9
        ):
            break
    return a, b, c, error
