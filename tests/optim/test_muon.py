"""Muon: orthogonal steps for matrices, AdamW's for the rest."""

import math
from typing import Any

import pytest
import torch

from groundup.errors import ConfigError
from groundup.nn.kernels import HAS_TRITON, reference
from groundup.optim import AdamW, Muon
from groundup.optim.orthogonalization import orthogonalize, orthogonalize_each

needs_kernels = pytest.mark.skipif(
    not (torch.cuda.is_available() and HAS_TRITON), reason="needs CUDA and Triton"
)


@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (6, 17), (1, 9)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_orthogonalizing_keeps_the_singular_vectors(
    shape: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> None:
    torch.manual_seed(0)
    left = torch.linalg.qr(torch.randn(shape[0], shape[0], dtype=torch.float64)).Q
    right = torch.linalg.qr(torch.randn(shape[1], shape[1], dtype=torch.float64)).Q[: shape[0]]
    sizes = torch.logspace(0, -1.5, shape[0], dtype=torch.float64)
    matrix = (left @ (sizes[:, None] * right) * 1e-4).to(device, dtype)
    result = orthogonalize(matrix).cpu().double()
    inner = left.T @ result @ right.T
    torch.testing.assert_close(inner, torch.eye(shape[0], dtype=torch.float64), atol=0.2, rtol=0)


@pytest.mark.parametrize("shape", [(1, 1), (3, 40), (16, 16), (17, 33), (96, 100), (130, 129)])
def test_the_cpu_kernel_computes_the_formula(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    stack = torch.randn(5, *shape)
    stack[1] *= 1e-20  # Scale does not matter.
    stack[4] *= 1e9
    stack[3] = 0
    found = orthogonalize(stack)
    torch.testing.assert_close(found, orthogonalize(stack.double()).float(), atol=1e-4, rtol=0)
    assert not found[3].any()
    # Matrices are independent, for any number of threads; non-finite values do not spread.
    num_threads = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert torch.equal(orthogonalize(stack), found)
            assert torch.equal(orthogonalize_each(stack[2:]), found[2:])
    finally:
        torch.set_num_threads(num_threads)
    assert orthogonalize(stack[:0]).shape == (0, *shape)
    stack[2, 0, 0] = math.nan
    again = orthogonalize(stack)
    assert again[2].isnan().all() and torch.equal(again[[0, 1, 3, 4]], found[[0, 1, 3, 4]])


@pytest.mark.parametrize("evens", [False, True])
def test_a_step_equals_the_formula(evens: bool) -> None:
    """Two steps of a wide and a tall matrix against the docstring's formulas."""
    torch.manual_seed(0)
    ours = [torch.randn(4, 6).requires_grad_(), torch.randn(6, 4).requires_grad_()]
    theirs = [one.detach().clone() for one in ours]
    momenta = [torch.zeros_like(one) for one in ours]
    squares = [torch.full((len(one), 1), 1 / 6) for one in ours]
    optimizer = Muon(ours, lr=0.02, momentum=0.9, weight_decay=0.3, normalize_rows=evens)
    for _ in range(2):
        for index, parameter in enumerate(ours):
            parameter.grad = torch.randn_like(parameter)
            momenta[index] = 0.9 * momenta[index] + 0.1 * parameter.grad
            ahead = 0.9 * momenta[index] + 0.1 * parameter.grad
            lying = index == 0
            direction = orthogonalize(ahead if lying else ahead.T)
            step = direction if lying else direction.T
            if evens:
                new = step.square().mean(dim=1, keepdim=True)
                squares[index] = 0.95 * squares[index] + 0.05 * new
                step = step / (squares[index] * 6).sqrt()
            theirs[index] -= 0.02 * 0.3 * theirs[index]
            theirs[index] -= 0.02 * 0.2 * math.sqrt(6) * step
        optimizer.step()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)
    assert list(optimizer.state[ours[0]]) == ["momentum", "row_means"][: 1 + evens]


@pytest.mark.usefixtures("form")
def test_its_adamw_groups_step_like_adamw() -> None:
    torch.manual_seed(0)
    matrix = torch.randn(4, 4, requires_grad=True)
    ours = [torch.randn(shape, requires_grad=True) for shape in [(5, 3), (7,)]]
    theirs = [one.detach().clone().requires_grad_() for one in ours]
    optimizer = Muon(
        [{"params": [matrix]}, {"params": ours, "kind": "adamw", "lr": 0.03, "weight_decay": 0.2}],
        betas=(0.8, 0.9),
    )
    twin = AdamW(theirs, lr=0.03, betas=(0.8, 0.9), weight_decay=0.2)
    for _ in range(3):
        matrix.grad = torch.randn_like(matrix)
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        optimizer.step()
        twin.step()
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
    with pytest.raises(ConfigError, match=r"shape \(7,\).*\"adamw\""):
        Muon([matrix, ours[1]])


@needs_kernels
@pytest.mark.parametrize("evens", [False, True])
@pytest.mark.parametrize("shape", [(8, 8), (72, 40), (130, 200), (1, 9), (257, 129)])
def test_the_kernels_step_like_the_formula(shape: tuple[int, int], evens: bool) -> None:
    torch.manual_seed(0)
    start = [torch.randn(shape, device="cuda") for _ in range(5)]
    ours = [one.clone().requires_grad_() for one in start]
    theirs = [one.double().requires_grad_() for one in start]
    settings: dict[str, Any] = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.3}
    settings["normalize_rows"] = evens
    optimizer = Muon(ours, **settings)
    exact = Muon(theirs, **settings)
    scale = torch.tensor(0.5, device="cuda")
    for _ in range(3):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one) * 1e-3
            other.grad = one.grad.double()
        optimizer.step(gradient_scale=scale)
        with reference():
            exact.step(gradient_scale=scale)
    # The singular value of a single row is at the end of the polynomials' interval, where rounding
    # moves the result within their error: an eighth to either side.
    allowed = 0.05 if min(shape) > 1 else 0.25
    for one, other, first in zip(ours, theirs, start, strict=True):
        move = (other - first).norm()
        assert (one - other).norm() / move < allowed
        momentum, expected = optimizer.state[one]["momentum"], exact.state[other]["momentum"]
        torch.testing.assert_close(momentum, expected.float())
        if evens:
            means = optimizer.state[one]["row_means"], exact.state[other]["row_means"].float()
            torch.testing.assert_close(*means, rtol=0.1, atol=0)


@needs_kernels
@pytest.mark.parametrize("shape", [(40, 72), (72, 40), (200, 200)])
def test_a_matrix_gets_the_same_bits_in_every_stack(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    stack = torch.randn(7, *shape, device="cuda", dtype=torch.bfloat16)
    stack[3] = 0
    together = orthogonalize(stack)
    assert torch.equal(together, torch.stack([orthogonalize(one) for one in stack]))
    assert torch.equal(together, orthogonalize_each(stack))
    assert not together[3].any() and orthogonalize(stack[:0]).shape == (0, *shape)
