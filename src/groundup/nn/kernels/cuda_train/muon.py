"""Muon's orthogonalization for a stack of matrices.

The result for a matrix does not depend on the rest of the stack, to the last bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Values per program, and programs that sum the squares of one matrix.
_BLOCK = 2048
_NUM_SUMS = 32
_TILE = {"ROWS": 128, "COLUMNS": 128, "DEPTH": 64, "num_warps": 4, "num_stages": 3}


def orthogonalize(matrices: Tensor, coefficients: tuple[tuple[float, float, float], ...]) -> Tensor:
    """X <- G / ‖G‖; for each (a, b, c): X <- a X + b (X Xᵀ) X + c (X Xᵀ)² X.

    matrices: G, (stack, rows, columns) in half precision, rows <= columns; each matrix is stored
    row-major or column-major.
    """
    num_matrices, rows, columns = matrices.shape
    if not matrices.numel():
        return matrices
    if not (matrices.is_contiguous() or matrices.mT.is_contiguous()):
        matrices = matrices.contiguous()
    count = rows * columns
    sums = matrices.new_empty(num_matrices, _NUM_SUMS, dtype=torch.float32)
    _square_sums[(_NUM_SUMS, num_matrices)](matrices, sums, count, NUM=_NUM_SUMS, BLOCK=_BLOCK)
    x = torch.empty_like(matrices)
    grid = (triton.cdiv(count, _BLOCK), num_matrices)
    _normalize[grid](matrices, sums, x, count, NUM=_NUM_SUMS, BLOCK=_BLOCK)
    gram = matrices.new_empty(num_matrices, rows, rows)
    polynomial, following = torch.empty_like(gram), torch.empty_like(x)
    for a, b, c in coefficients:
        _multiply_into(gram, x, x.mT, is_symmetric=True)
        _multiply_into(polynomial, gram, gram, gram, c, b, is_symmetric=True)
        _multiply_into(following, polynomial, x, x, 1.0, a)
        x, following = following, x
    return x


def _multiply_into(
    result: Tensor, left: Tensor, right: Tensor, added: Tensor | None = None,
    alpha: float = 1.0, beta: float = 0.0, *, is_symmetric: bool = False,
) -> None:  # fmt: skip
    """result <- alpha left @ right + beta added, for each matrix of the stacks; computes half of a
    symmetric result. `added` has the strides of `result`."""
    num_matrices, rows, columns = result.shape
    tiles = triton.cdiv(columns, _TILE["COLUMNS"]), triton.cdiv(rows, _TILE["ROWS"])
    strides = *left.stride()[1:], *right.stride()[1:], *result.stride()[1:]
    _multiply[(*tiles, num_matrices)](
        left, right, result if added is None else added, result, alpha, beta,
        rows, columns, left.shape[2], *strides,
        HAS_ADDED=added is not None, IS_SYMMETRIC=is_symmetric, **_TILE,
    )  # fmt: skip


@triton.jit
def _square_sums(matrices, sums, count, NUM: tl.constexpr, BLOCK: tl.constexpr):
    part, matrix = tl.program_id(0), tl.program_id(1)
    matrices += matrix.to(tl.int64) * count
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(part * BLOCK, count, NUM * BLOCK):
        index = start + tl.arange(0, BLOCK)
        value = tl.load(matrices + index, mask=index < count, other=0.0).to(tl.float32)
        total += value * value
    tl.store(sums + matrix * NUM + part, tl.sum(total, axis=0))


@triton.jit
def _normalize(matrices, sums, result, count, NUM: tl.constexpr, BLOCK: tl.constexpr):
    matrix = tl.program_id(1)
    norm = tl.sqrt(tl.sum(tl.load(sums + matrix * NUM + tl.arange(0, NUM)), axis=0))
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    offset = matrix.to(tl.int64) * count + index
    value = tl.load(matrices + offset, mask=index < count, other=0.0).to(tl.float32)
    # The smallest normal float32.
    value /= tl.maximum(norm, 1.1754943508222875e-38)
    tl.store(result + offset, value.to(result.dtype.element_ty), mask=index < count)


@triton.jit
def _multiply(
    left, right, added, result, alpha, beta, rows, columns, depth,
    left_row, left_column, right_row, right_column, result_row, result_column,
    HAS_ADDED: tl.constexpr, IS_SYMMETRIC: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    tile_column, tile_row = tl.program_id(0), tl.program_id(1)
    if IS_SYMMETRIC and tile_column < tile_row:
        return
    matrix = tl.program_id(2).to(tl.int64)
    row = tile_row * ROWS + tl.arange(0, ROWS)
    column = tile_column * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, DEPTH)
    left += matrix * rows * depth + row[:, None] * left_row + inner[None, :] * left_column
    right += matrix * depth * columns + inner[:, None] * right_row + column[None, :] * right_column
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, depth, DEPTH):
        is_deep = inner < depth - start
        a = tl.load(left, mask=(row < rows)[:, None] & is_deep[None, :], other=0.0)
        b = tl.load(right, mask=is_deep[:, None] & (column < columns)[None, :], other=0.0)
        total = tl.dot(a, b, total)
        left += DEPTH * left_column
        right += DEPTH * right_row
    total *= alpha
    is_inside = (row < rows)[:, None] & (column < columns)[None, :]
    offset = matrix * rows * columns + row[:, None] * result_row + column[None, :] * result_column
    if HAS_ADDED:
        total += beta * tl.load(added + offset, mask=is_inside, other=0.0).to(tl.float32)
    values = total.to(result.dtype.element_ty)
    tl.store(result + offset, values, mask=is_inside)
    if IS_SYMMETRIC and tile_column > tile_row:
        mirrored = row[:, None] * result_column + column[None, :] * result_row
        tl.store(result + matrix * rows * columns + mirrored, values, mask=is_inside)
