"""The native float32 kernels against the formulas in float64, for odd sizes."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from groundup import _native
from groundup.nn import RMSNorm, RotaryEmbedding, kernels, scaled_dot_product_attention
from groundup.nn.kernels import cpu
from groundup.nn.linear_cross_entropy import linear_cross_entropy


def _random(*shape: int, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(math.prod(shape) + 1000 * len(shape))
    return (torch.randn(shape, generator=generator) * scale).requires_grad_()


@given(st.integers(1, 150), st.integers(1, 70))
def test_the_norm_of_a_sum_and_its_gradients_equal_the_formula(
    agree: Any, rows: int, width: int
) -> None:
    x, gain, addend = _random(rows, width), _random(width), _random(rows, width, scale=2.0)

    def plain(total: Tensor) -> Tensor:
        scale = torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-5)
        return total * scale * gain.double()

    total = x.double() + addend.double()
    ours = torch.stack(cpu.rms_norm(x, addend, gain, 1e-5))
    agree(ours, torch.stack([total, plain(total)]), [x, gain, addend], relative=1e-4)
    alone = cpu.rms_norm(x, None, gain, 1e-5)[1]
    agree(alone, plain(x.double()), [x, gain], relative=1e-4)


@pytest.mark.parametrize("used", [0, 1])
def test_the_sum_or_its_norm_may_be_unused(used: int) -> None:
    x, addend = _random(6, 20), _random(6, 20, scale=2.0)
    norm = RMSNorm(20)
    got = torch.autograd.grad(norm.of_sum(x, addend)[used].square().sum(), [x, addend])
    assert kernels.can_run_on(x)
    with kernels.reference():
        assert not kernels.can_run_on(x)
        expected = torch.autograd.grad(norm.of_sum(x, addend)[used].square().sum(), [x, addend])
    torch.testing.assert_close(got, expected)


lengths = st.lists(st.integers(1, 40), min_size=1, max_size=6)


@given(
    st.lists(lengths, min_size=1, max_size=3),
    st.integers(1, 3),
    st.integers(1, 20),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_packed_attention_with_documents_equals_the_formula(
    agree: Any,
    rows: list[list[int]],
    heads: int,
    half: int,
    rotates: bool,
    normalizes: bool,
    has_starts: bool,
) -> None:
    batch, seq, d_head = len(rows), min(map(sum, rows)), 2 * half - (not rotates)
    rope = RotaryEmbedding(10_000.0, d_head, seq + 3) if rotates else None
    mask = torch.ones(seq, seq, dtype=torch.bool).tril()
    starts = None
    if has_starts:
        begins = [[sum(row[:n]) for n, size in enumerate(row) for _ in range(size)] for row in rows]
        starts = torch.tensor([one[:seq] for one in begins])
        mask = (mask & (torch.arange(seq) >= starts[..., None])).unsqueeze(1)
    packed, gains, eps = _random(batch, seq, 3 * heads * d_head), None, 1e-3
    query, key, value = packed.double().view(batch, seq, 3, heads, -1).permute(2, 0, 3, 1, 4)
    if normalizes:
        gains = (_random(2, d_head, scale=0.5).detach() + 1).requires_grad_()
        query, key = (
            x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * gain
            for x, gain in zip((query, key), gains.double(), strict=True)
        )
    if rope is not None:
        query, key = rope(query), rope(key)
    mixed = scaled_dot_product_attention(query, key, value, mask)
    sides = (None, None) if rope is None else (rope.cos, rope.sin)
    ours = cpu.PackedAttention.apply(packed, *sides, gains, eps, heads, starts)
    inputs = [packed] if gains is None else [packed, gains]
    agree(ours, mixed.transpose(1, 2).flatten(-2), inputs, relative=1e-4)


@pytest.mark.parametrize("starts", [[0, 1, 0], [0, 2, 2], [-1, 0, 0], [1, 1, 1]])
def test_invalid_document_starts_are_rejected(starts: list[int]) -> None:
    packed = _random(1, 3, 3 * 16).detach()
    with pytest.raises(ValueError, match="must be in order"):
        cpu.PackedAttention.apply(packed, None, None, None, 0.0, 1, torch.tensor([starts]))


def test_the_bits_do_not_depend_on_the_number_of_threads() -> None:
    packed, d_out = _random(3, 77, 3 * 5 * 16), _random(3, 77, 5 * 16)
    gains, found = _random(2, 16), []
    before = torch.get_num_threads()
    try:
        for num_threads in (1, 2, 3):
            torch.set_num_threads(num_threads)
            out = cpu.PackedAttention.apply(packed, None, None, gains, 1e-5, 5)
            norm = cpu.rms_norm(packed, None, torch.ones(240), 1e-5)[1]
            found.append([out, norm, *torch.autograd.grad(out, (packed, gains), d_out)])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_values_stay_non_finite(bad: float) -> None:
    x = _random(5, 37).detach()
    x[2, 30] = bad
    assert not RMSNorm(37)(x)[2].isfinite().all()
    assert RMSNorm(37)(x)[3].isfinite().all()
    if bad != -math.inf:
        assert not cpu.PackedSwiGLU.apply(x[:, 1:].contiguous()).isfinite().all()
    loss = linear_cross_entropy(x, _random(11, 37), torch.zeros(5, dtype=torch.long))
    assert not loss.isfinite()
    for part in range(3):
        packed = _random(2, 40, 3, 16).detach()
        packed[1, 20, part, 3] = bad
        out = cpu.PackedAttention.apply(packed.flatten(2), None, None, None, 0.0, 1)
        assert out[0].isfinite().all() and out[1, :16].isfinite().all()
        assert bad == -math.inf or not out[1, 20].isfinite().all()


def test_an_array_of_the_wrong_size_is_rejected_and_released() -> None:
    packed, out = bytearray(16), bytearray(12)
    with pytest.raises(ValueError, match="an array has 12 bytes, not 8"):
        _native.gate_rows(1, 2, packed, out, 1)
    # Both buffers are released: a bytearray with an exported buffer cannot grow.
    packed.append(0)
    out.append(0)
