"""Muon's step for a stack of matrices: momentum and look ahead, orthogonalization, the move.

The bits of a matrix depend on it alone, not on how many are in the stack.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Values a program works on, and how many programs sum the squares of one matrix.
_BLOCK = 2048
_NUM_SUMS = 32
# The addresses of so many matrices are arguments of one launch: a recorded graph keeps them.
_PER_LAUNCH = 4
_TILE = {"ROWS": 128, "COLUMNS": 128, "DEPTH": 64, "num_warps": 4, "num_stages": 3}


def look_ahead(
    gradients: list[Tensor], momenta: list[Tensor], momentum: float, scale: Tensor, skip: Tensor
) -> Tensor:
    """μ M + (1 - μ) G of each matrix, a stack in bfloat16; M <- μ M + (1 - μ) G goes first.

    gradients, momenta: G and M, contiguous matrices of one shape in float32.   momentum: μ.
    scale: a factor on G.   skip: 1 leaves M as it is.
    """
    count = gradients[0].numel()
    stack = gradients[0].new_empty(len(gradients), *gradients[0].shape, dtype=torch.bfloat16)
    for first in range(0, len(gradients), _PER_LAUNCH):
        chunk = slice(first, first + _PER_LAUNCH)
        grid = (triton.cdiv(count, _BLOCK), len(gradients[chunk]))
        matrices = *_filled(gradients[chunk]), *_filled(momenta[chunk]), stack[first:]
        _look_ahead[grid](*matrices, scale, skip, 1 - momentum, count, BLOCK=_BLOCK)
    return stack


def move(
    parameters: list[Tensor], directions: Tensor, learning_rate: Tensor, factor: float,
    weight_decay: float, skip: Tensor, row_means: list[Tensor] | None = None,
    row_weight: float = 0.0, longest: int = 1,
) -> None:  # fmt: skip
    """θ <- θ - lr λ θ - lr · factor · D.

    parameters: θ, contiguous matrices of one shape in float32.   directions: D, a stack.
    learning_rate: lr.   weight_decay: λ.   skip: 1 leaves θ as it is.
    row_means: v, a number for each row: D <- D / √(v longest) goes first, and before it
        v <- v + row_weight (mean of the row's D² - v).
    """
    directions = directions.contiguous()
    rows, columns = parameters[0].shape
    # A program has one row where rows matter, else a part of a matrix.
    block = _BLOCK if row_means is None else triton.next_power_of_2(columns)
    count = rows * columns if row_means is None else columns
    num_parts = triton.cdiv(count, block) if row_means is None else rows
    for first in range(0, len(parameters), _PER_LAUNCH):
        chunk = slice(first, first + _PER_LAUNCH)
        _move[(num_parts, len(parameters[chunk]))](
            *_filled(parameters[chunk]), *_filled((row_means or parameters)[chunk]),
            directions[first:], learning_rate, skip, factor, weight_decay, row_weight, longest,
            rows, columns, BLOCK=block, HAS_ROWS=row_means is not None,
        )  # fmt: skip


def orthogonalize(matrices: Tensor, coefficients: tuple[tuple[float, float, float], ...]) -> Tensor:
    """X <- G / ‖G‖; for each (a, b, c): X <- a X + b (X Xᵀ) X + c (X Xᵀ)² X.

    matrices: G, (stack, rows, columns) in half precision, no more rows than columns, in memory one
    after the other: rows of each together, or columns.
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
    """result <- alpha left @ right + beta added, for each matrix of the stacks; half of a symmetric
    one is computed. `added` has the strides of `result`."""
    num_matrices, rows, columns = result.shape
    tiles = triton.cdiv(columns, _TILE["COLUMNS"]), triton.cdiv(rows, _TILE["ROWS"])
    strides = *left.stride()[1:], *right.stride()[1:], *result.stride()[1:]
    _multiply[(*tiles, num_matrices)](
        left, right, result if added is None else added, result, alpha, beta,
        rows, columns, left.shape[2], *strides,
        HAS_ADDED=added is not None, IS_SYMMETRIC=is_symmetric, **_TILE,
    )  # fmt: skip


def _filled(tensors: list[Tensor]) -> list[Tensor]:
    """As many as a launch takes; nobody looks at the last ones of a short list."""
    return [*tensors, *tensors[:1] * (_PER_LAUNCH - len(tensors))]


@triton.jit
def _choose(index, a, b, c, d):
    return tl.where(index < 2, tl.where(index == 0, a, b), tl.where(index == 2, c, d))


@triton.jit
def _look_ahead(
    gradient0, gradient1, gradient2, gradient3, momentum0, momentum1, momentum2, momentum3,
    stack, scale, skip, weight, count, BLOCK: tl.constexpr,
):  # fmt: skip
    matrix = tl.program_id(1)
    gradients = _choose(matrix, gradient0, gradient1, gradient2, gradient3)
    momenta = _choose(matrix, momentum0, momentum1, momentum2, momentum3)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_inside = index < count
    gradient = tl.load(gradients + index, mask=is_inside, other=0.0) * tl.load(scale)
    momentum = tl.load(momenta + index, mask=is_inside, other=0.0)
    momentum += weight * (gradient - momentum)
    if tl.load(skip) == 0.0:
        tl.store(momenta + index, momentum, mask=is_inside)
    ahead = momentum + weight * (gradient - momentum)
    tl.store(stack + matrix.to(tl.int64) * count + index, ahead.to(tl.bfloat16), mask=is_inside)


@triton.jit
def _move(
    weight0, weight1, weight2, weight3, mean0, mean1, mean2, mean3, directions, learning_rate, skip,
    factor, weight_decay, row_weight, longest, rows, columns,
    BLOCK: tl.constexpr, HAS_ROWS: tl.constexpr,
):  # fmt: skip
    if tl.load(skip) != 0.0:
        return
    part, matrix = tl.program_id(0), tl.program_id(1)
    weights = _choose(matrix, weight0, weight1, weight2, weight3)
    if HAS_ROWS:
        index = part * columns + tl.arange(0, BLOCK)
        is_inside = tl.arange(0, BLOCK) < columns
    else:
        index = part * BLOCK + tl.arange(0, BLOCK)
        is_inside = index < rows * columns
    rate = tl.load(learning_rate)
    weight = tl.load(weights + index, mask=is_inside, other=0.0)
    offset = matrix.to(tl.int64) * rows * columns + index
    direction = tl.load(directions + offset, mask=is_inside, other=0.0).to(tl.float32)
    if HAS_ROWS:
        means = _choose(matrix, mean0, mean1, mean2, mean3) + part
        mean = tl.load(means)
        mean += row_weight * (tl.sum(direction * direction, axis=0) / columns - mean)
        tl.store(means, mean)
        direction *= tl.rsqrt(tl.maximum(mean, 1e-20) * longest)
    moved = weight * (1.0 - rate * weight_decay) - direction * (rate * factor)
    tl.store(weights + index, moved, mask=is_inside)


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
