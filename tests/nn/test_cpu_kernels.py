"""The native passes for float32 on a CPU against the formulas in float64, over odd sizes."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from groundup import _native
from groundup.nn import RMSNorm, RotaryEmbedding, kernels, scaled_dot_product_attention, silu
from groundup.nn.kernels import cpu
from groundup.nn.linear_cross_entropy import (
    linear_cross_entropy,
    linear_cross_entropy_reference,
)

widths = st.integers(1, 70)
row_counts = st.integers(1, 150)

Several = Callable[..., tuple[Tensor, ...]]


def _random(*shape: int, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(math.prod(shape) + 1000 * len(shape))
    return torch.randn(shape, generator=generator) * scale


def _gradients(outputs: tuple[Tensor, ...], inputs: list[Tensor]) -> list[Tensor]:
    """Of a sum that weighs every output value differently."""
    total = sum((out * _random(*out.shape).to(out.dtype)).sum() for out in outputs)
    assert isinstance(total, Tensor)
    return list(torch.autograd.grad(total, inputs))


def _assert_twins(
    fast: Several, plain: Several, inputs: list[Tensor], tolerance: float = 2e-5
) -> None:
    """Values and gradients of `fast` in float32 are those of `plain` in float64."""
    narrow = [x.clone().requires_grad_() for x in inputs]
    wide = [x.double().requires_grad_() for x in inputs]
    got, expected = fast(*narrow), plain(*wide)
    pairs = [*zip(got, expected, strict=True)]
    pairs += zip(_gradients(got, narrow), _gradients(expected, wide), strict=True)
    for ours, theirs in pairs:
        largest = max(1.0, float(theirs.detach().abs().max()))
        torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance * largest)


@given(row_counts, widths)
def test_the_norm_of_a_sum_and_both_gradients_are_the_formula(rows: int, width: int) -> None:
    eps = 1e-5

    def plain(x: Tensor, gain: Tensor, addend: Tensor) -> tuple[Tensor, ...]:
        total = x + addend
        return total, total * torch.rsqrt(total.square().mean(-1, keepdim=True) + eps) * gain

    def fast(x: Tensor, gain: Tensor, addend: Tensor) -> tuple[Tensor, ...]:
        return cpu.rms_norm(x, addend, gain, eps)

    x, gain = _random(rows, width), _random(width)
    _assert_twins(fast, plain, [x, gain, _random(rows, width, 1)[..., 0]], 1e-4)
    # And of x alone.
    _assert_twins(
        lambda x, gain: cpu.rms_norm(x, None, gain, eps)[1:],
        lambda x, gain: plain(x, gain, torch.zeros_like(x))[1:],
        [x, gain],
        1e-4,
    )


@pytest.mark.parametrize("used", [0, 1])
def test_of_the_sum_and_its_norm_one_may_go_unused(used: int) -> None:
    x, addend = _random(6, 20).requires_grad_(), _random(6, 20, scale=2.0).requires_grad_()
    norm = RMSNorm(20)
    got = torch.autograd.grad(norm.of_sum(x, addend)[used].square().sum(), [x, addend])
    with kernels.reference():
        expected = torch.autograd.grad(norm.of_sum(x, addend)[used].square().sum(), [x, addend])
    torch.testing.assert_close(got, expected)


@given(row_counts, widths)
def test_the_gate_and_its_gradients_are_the_formula(rows: int, width: int) -> None:
    def plain(packed: Tensor) -> tuple[Tensor, ...]:
        gate, up = packed.chunk(2, dim=-1)
        return (silu(gate) * up,)

    def fast(packed: Tensor) -> tuple[Tensor, ...]:
        return (cpu.PackedSwiGLU.apply(packed),)

    _assert_twins(fast, plain, [_random(rows, 2 * width, scale=6.0)])


def _attention_twins(
    batch: int,
    seq: int,
    heads: int,
    d_head: int,
    *,
    rotates: bool,
    normalizes: bool,
    starts: Tensor | None = None,
) -> None:
    rope = RotaryEmbedding(10_000.0, d_head, seq + 3) if rotates else None
    mask = torch.ones(seq, seq, dtype=torch.bool).tril()
    if starts is not None:
        mask = (mask & (torch.arange(seq) >= starts[..., None])).unsqueeze(1)
    eps = 1e-3
    inputs = [_random(batch, seq, 3 * heads * d_head)]
    if normalizes:
        inputs.append(_random(2, d_head, scale=0.5) + 1)

    def plain(packed: Tensor, gains: Tensor | None = None) -> tuple[Tensor, ...]:
        query, key, value = packed.view(batch, seq, 3, heads, -1).permute(2, 0, 3, 1, 4)
        if gains is not None:
            query, key = (
                x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * gain
                for x, gain in zip((query, key), gains, strict=True)
            )
        if rope is not None:
            query, key = rope(query), rope(key)
        mixed = scaled_dot_product_attention(query, key, value, mask)
        return (mixed.transpose(1, 2).reshape(batch, seq, -1),)

    def fast(packed: Tensor, gains: Tensor | None = None) -> tuple[Tensor, ...]:
        sides = (None, None) if rope is None else (rope.cos, rope.sin)
        return (cpu.PackedAttention.apply(packed, *sides, gains, eps, heads, starts),)

    _assert_twins(fast, plain, inputs, 1e-4)


@given(
    st.integers(1, 3),
    st.integers(1, 70),
    st.integers(1, 3),
    st.integers(1, 40),
    st.booleans(),
    st.booleans(),
)
def test_packed_attention_is_the_formula(
    batch: int, seq: int, heads: int, d_head: int, rotates: bool, normalizes: bool
) -> None:
    if rotates:
        d_head += d_head % 2
    _attention_twins(batch, seq, heads, d_head, rotates=rotates, normalizes=normalizes)


@given(st.lists(st.lists(st.integers(1, 90), min_size=1, max_size=6), min_size=1, max_size=3))
def test_attention_sees_nothing_before_a_start(lengths: list[list[int]]) -> None:
    seq = min(map(sum, lengths))
    rows = [torch.tensor([sum(row[:n]) for n, size in enumerate(row) for _ in range(size)])
            for row in lengths]  # fmt: skip
    starts = torch.stack([row[:seq] for row in rows])
    _attention_twins(len(rows), seq, 2, 24, rotates=True, normalizes=True, starts=starts)


@pytest.mark.parametrize("starts", [[0, 1, 0], [0, 2, 2], [-1, 0, 0], [1, 1, 1]])
def test_starts_out_of_order_or_behind_their_own_token_are_refused(starts: list[int]) -> None:
    packed = _random(1, 3, 3 * 16)
    with pytest.raises(ValueError, match="must begin in order"):
        cpu.PackedAttention.apply(packed, None, None, None, 0.0, 1, torch.tensor([starts]))


def test_the_bits_do_not_depend_on_the_number_of_threads() -> None:
    packed, d_out = _random(3, 77, 3 * 5 * 16), _random(3, 77, 5 * 16)
    gains = _random(2, 16) + 1
    found = []
    before = torch.get_num_threads()
    try:
        for num_threads in (1, 2, 3):
            torch.set_num_threads(num_threads)
            leaves = [packed.clone().requires_grad_(), gains.clone().requires_grad_()]
            out = cpu.PackedAttention.apply(leaves[0], None, None, leaves[1], 1e-5, 5)
            norm = cpu.rms_norm(leaves[0], None, torch.ones(240), 1e-5)[1]
            found.append([out, norm, *torch.autograd.grad(out, leaves, d_out)])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@given(row_counts, widths, st.sampled_from([0.0, 1e-2]))
def test_the_loss_and_its_gradients_are_the_formula(rows: int, vocab: int, z_loss: float) -> None:
    targets = torch.arange(rows) % vocab

    def fast(hidden: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        return (linear_cross_entropy(hidden, weight, targets, z_loss=z_loss),)

    def plain(hidden: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        return (linear_cross_entropy_reference(hidden, weight, targets, z_loss=z_loss),)

    _assert_twins(fast, plain, [_random(rows, 9, scale=4.0), _random(vocab, 9)], 1e-4)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_so(bad: float) -> None:
    x = _random(5, 37)
    x[2, 30] = bad
    assert not RMSNorm(37)(x)[2].isfinite().all()
    assert RMSNorm(37)(x)[3].isfinite().all()
    if bad != -math.inf:
        assert not cpu.PackedSwiGLU.apply(x[:, 1:].contiguous()).isfinite().all()
    loss = linear_cross_entropy(x, _random(11, 37), torch.zeros(5, dtype=torch.long))
    assert not loss.isfinite()
    for part in range(3):
        packed = _random(2, 40, 3, 16)
        packed[1, 20, part, 3] = bad
        out = cpu.PackedAttention.apply(packed.flatten(2), None, None, None, 0.0, 1)
        assert out[0].isfinite().all() and out[1, :16].isfinite().all()
        assert bad == -math.inf or not out[1, 20].isfinite().all()


def test_an_array_of_another_size_is_refused_and_let_go() -> None:
    packed, out = bytearray(16), bytearray(12)
    with pytest.raises(ValueError, match="an array has 12 bytes, not 2 values of 4"):
        _native.gate_rows(packed, out, 1, 2, 1)
    # Neither is held any more: a bytearray that somebody looks at cannot grow.
    packed.append(0)
    out.append(0)
