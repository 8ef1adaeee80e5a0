"""Rotary position embedding against multiplication of complex numbers."""

import math

import pytest
import torch
from torch import Tensor

from groundup.errors import ConfigError
from groundup.nn import RotaryEmbedding


def turned_by_complex_numbers(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    d_k = x.shape[-1]
    frequencies = theta ** (-torch.arange(0, d_k, 2, dtype=torch.float64) / d_k)
    angles = positions.double().unsqueeze(-1) * frequencies
    pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


@pytest.mark.parametrize("leading", [(), (3,), (2, 4), (2, 1, 3)])
@pytest.mark.parametrize("d_k", [2, 6, 64])
@pytest.mark.parametrize("theta", [10_000.0, 7.5])
def test_pairs_turn_as_complex_numbers(leading: tuple[int, ...], d_k: int, theta: float) -> None:
    rope = RotaryEmbedding(theta, d_k, 16)
    x = torch.randn(*leading, 11, d_k, requires_grad=True)
    out = rope(x)
    twin = turned_by_complex_numbers(x, torch.arange(11), theta)
    torch.testing.assert_close(out, twin.float())
    d_out = torch.randn_like(out)
    (ours,) = torch.autograd.grad(out, x, d_out)
    (theirs,) = torch.autograd.grad(twin, x, d_out.double())
    torch.testing.assert_close(ours, theirs)


def test_half_precision_is_rounded_once() -> None:
    rope = RotaryEmbedding(10_000.0, 8, 300)
    x = torch.randn(2, 300, 8).bfloat16()
    out = rope(x)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, rope(x.float()).bfloat16())


def test_gradients_in_half_precision_are_near_those_of_complex_numbers() -> None:
    rope = RotaryEmbedding(10_000.0, 8, 300)
    x = torch.randn(2, 300, 8).bfloat16().requires_grad_()
    d_out = torch.randn_like(x)
    (ours,) = torch.autograd.grad(rope(x), x, d_out)
    twin = turned_by_complex_numbers(x, torch.arange(300), 10_000.0)
    (theirs,) = torch.autograd.grad(twin, x, d_out.double())
    assert (ours.double() - theirs.double()).norm() < 0.03 * theirs.double().norm()


def test_turning_keeps_lengths_and_position_zero() -> None:
    rope = RotaryEmbedding(10_000.0, 8, 100)
    x = torch.randn(2, 100, 8)
    out = rope(x)
    assert torch.equal(out[:, 0], x[:, 0])
    torch.testing.assert_close(out.norm(dim=-1), x.norm(dim=-1))


def test_products_depend_on_the_distance_alone() -> None:
    rope = RotaryEmbedding(10_000.0, 16, 2_000)
    query, key = torch.randn(1, 16, dtype=torch.float64), torch.randn(1, 16, dtype=torch.float64)

    def product(query_position: int, key_position: int) -> Tensor:
        turned_query = rope(query, torch.tensor([query_position]))
        turned_key = rope(key, torch.tensor([key_position]))
        return (turned_query * turned_key).sum()

    for distance in (0, 1, 13, 900):
        near = product(distance, 0)
        for shift in (1, 77, 1_000):
            far = product(distance + shift, shift)
            torch.testing.assert_close(far, near, rtol=0, atol=1e-5)
    assert not torch.isclose(product(1, 0), product(2, 0))


@pytest.mark.parametrize("shape", [(6,), (3, 6), (1, 6)])
def test_given_positions_choose_the_angles(shape: tuple[int, ...]) -> None:
    rope = RotaryEmbedding(10_000.0, 8, 50)
    x = torch.randn(3, 6, 8)
    positions = torch.randint(50, shape)
    twin = turned_by_complex_numbers(x, positions, 10_000.0)
    torch.testing.assert_close(rope(x, positions), twin.float())


def test_positions_in_order_are_the_default() -> None:
    rope = RotaryEmbedding(10_000.0, 8, 50)
    x = torch.randn(3, 6, 8)
    assert torch.equal(rope(x), rope(x, torch.arange(6)))


@pytest.mark.parametrize("position", [1, 4_095, 131_071])
def test_angles_of_long_texts_are_exact(position: int) -> None:
    rope = RotaryEmbedding(500_000.0, 128, 131_072)
    for pair in (0, 1, 31, 63):
        angle = position * math.pow(500_000.0, -2 * pair / 128)
        assert rope.cos[position, pair].item() == pytest.approx(math.cos(angle), abs=1e-7)
        assert rope.sin[position, pair].item() == pytest.approx(math.sin(angle), abs=1e-7)


def test_tables_are_no_part_of_a_checkpoint() -> None:
    rope = RotaryEmbedding(10_000.0, 8, 50)
    assert not rope.state_dict()
    assert not list(rope.parameters())


def test_tables_stay_exact_when_the_layer_is_cast() -> None:
    rope = RotaryEmbedding(10_000.0, 8, 50)
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
def test_a_text_beyond_the_tables_is_refused(max_seq_len: int) -> None:
    rope = RotaryEmbedding(10_000.0, 8, max_seq_len)
    with pytest.raises(ConfigError, match=rf"5 positions .* the {max_seq_len} "):
        rope(torch.randn(5, 8))


def test_impossible_rotations_are_refused() -> None:
    with pytest.raises(ConfigError, match="it is 7"):
        RotaryEmbedding(10_000.0, 7, 4)
    with pytest.raises(ConfigError, match=r"it is -1\.0"):
        RotaryEmbedding(-1.0, 8, 4)
