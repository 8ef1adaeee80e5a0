"""The row order of rotated heads: there and back, and what it means for attention."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from groundup.interop.weights import permute_rotation_rows, restore_rotation_rows
from groundup.nn import RotaryEmbedding


def rotate_halves(x: Tensor, theta: float) -> Tensor:
    """Llama's rotation of (seq, d_head): elements k and k + d_head/2 are rotated together."""
    seq, d_head = x.shape
    frequencies = theta ** -(torch.arange(0, d_head, 2) / d_head)
    angles = torch.arange(seq)[:, None] * frequencies
    first, second = x.chunk(2, dim=-1)
    return torch.cat(
        [
            first * angles.cos() - second * angles.sin(),
            second * angles.cos() + first * angles.sin(),
        ],
        dim=-1,
    )


def test_neighbours_become_halves() -> None:
    rows = torch.arange(12.0)
    assert permute_rotation_rows(rows, 2).tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


@given(heads=st.integers(1, 5), pairs=st.integers(1, 6), columns=st.integers(1, 3))
def test_the_two_orders_are_inverse(heads: int, pairs: int, columns: int) -> None:
    weight = torch.randn(heads * pairs * 2, columns)
    assert torch.equal(restore_rotation_rows(permute_rotation_rows(weight, heads), heads), weight)
    assert torch.equal(permute_rotation_rows(restore_rotation_rows(weight, heads), heads), weight)


def test_scores_stay_the_same_under_the_other_rotation() -> None:
    theta, d_head, seq = 10_000.0, 8, 5
    x = torch.randn(seq, 16)
    query, key = torch.randn(d_head, 16), torch.randn(d_head, 16)
    rope = RotaryEmbedding(theta, d_head, seq)
    ours = rope(x @ query.T) @ rope(x @ key.T).T
    halves = [rotate_halves(x @ permute_rotation_rows(one, 1).T, theta) for one in (query, key)]
    torch.testing.assert_close(halves[0] @ halves[1].T, ours, atol=1e-4, rtol=1e-5)
