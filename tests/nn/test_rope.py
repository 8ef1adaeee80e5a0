"""Rotary position embedding against multiplication of complex numbers."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from groundup.errors import ConfigError
from groundup.nn import RotaryEmbedding


def rotated_by_complex_numbers(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    d_k = x.shape[-1]
    frequencies = theta ** (-torch.arange(0, d_k, 2, dtype=torch.float64) / d_k)
    angles = positions.double().unsqueeze(-1) * frequencies
    pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


@pytest.mark.parametrize("leading", [(), (3,), (2, 4), (2, 1, 3)])
@pytest.mark.parametrize("d_k", [2, 6, 64])
@pytest.mark.parametrize("theta", [10_000.0, 7.5])
def test_pairs_rotate_as_complex_numbers(
    leading: tuple[int, ...], d_k: int, theta: float, agree: Any
) -> None:
    rope = RotaryEmbedding(theta, d_k, 16)
    x = torch.randn(*leading, 11, d_k, requires_grad=True)
    agree(rope(x), rotated_by_complex_numbers(x, torch.arange(11), theta), [x])
    half = x.detach().bfloat16().requires_grad_()
    out = rope(half)
    assert torch.equal(out, rope(half.float()).bfloat16())
    agree(out, rotated_by_complex_numbers(half, torch.arange(11), theta), [half], relative=0.03)


@pytest.mark.parametrize("shape", [(6,), (3, 6), (1, 6)])
def test_given_positions_choose_the_angles(shape: tuple[int, ...]) -> None:
    rope = RotaryEmbedding(10_000.0, 8, 50)
    x = torch.randn(3, 6, 8)
    positions = torch.randint(50, shape)
    twin = rotated_by_complex_numbers(x, positions, 10_000.0)
    torch.testing.assert_close(rope(x, positions), twin.float())


def test_angles_of_long_sequences_are_exact() -> None:
    rope = RotaryEmbedding(500_000.0, 128, 131_072)
    for position, pair in itertools.product((1, 4_095, 131_071), (0, 1, 31, 63)):
        angle = position * math.pow(500_000.0, -2 * pair / 128)
        assert rope.cos[position, pair].item() == pytest.approx(math.cos(angle), abs=1e-7)
        assert rope.sin[position, pair].item() == pytest.approx(math.sin(angle), abs=1e-7)


def test_tables_are_no_part_of_a_checkpoint_and_stay_exact_when_the_layer_is_cast() -> None:
    rope = RotaryEmbedding(10_000.0, 8, 50)
    assert not rope.state_dict() and not list(rope.parameters())
    before = rope.cos.clone()
    assert torch.equal(rope.to(torch.bfloat16).cos, before)
    assert torch.equal(rope.double().cos, before)


def test_tables_are_made_when_the_layer_gets_real_memory() -> None:
    with torch.device("meta"):
        rope = RotaryEmbedding(10_000.0, 8, 50)
    assert rope.cos.is_meta
    rope.to_empty(device="cpu")
    assert torch.equal(rope.sin, RotaryEmbedding(10_000.0, 8, 50).sin)


@pytest.mark.parametrize("max_seq_len", [1, 4])
def test_a_sequence_beyond_the_tables_is_refused(max_seq_len: int) -> None:
    rope = RotaryEmbedding(10_000.0, 8, max_seq_len)
    with pytest.raises(ConfigError, match=rf"5 positions .* the {max_seq_len} "):
        rope(torch.randn(5, 8))
