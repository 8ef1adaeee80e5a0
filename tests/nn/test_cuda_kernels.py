"""The CUDA kernels against the formulas in float64. Needs a GPU and Triton."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from groundup.model import TransformerLM
from groundup.nn import (
    MultiHeadSelfAttention,
    RotaryEmbedding,
    kernels,
    scaled_dot_product_attention,
    silu,
)
from groundup.nn.functional import document_mask, sequence_starts

pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() and kernels.HAS_TRITON), reason="needs CUDA and Triton"
)

# (batch, seq, heads, d_head): forward is ours up to 256 positions and torch's beyond; backward is
# ours. Includes lengths that do not fill a tile, and the smallest ones.
SHAPES = [
    (3, 256, 16, 32),
    (2, 200, 4, 64),
    (2, 1024, 12, 64),
    (1, 700, 2, 64),
    (2, 64, 4, 16),
    (1, 16, 1, 32),
    (2, 129, 3, 64),
    (2, 9, 2, 32),
    (1, 2100, 2, 64),
    (5_000, 16, 14, 16),
]
SHORT = [shape for shape in SHAPES if 16 <= shape[1] <= 256]


def relative_error(value: Tensor, expected: Tensor) -> float:
    assert value.shape == expected.shape
    assert value.isfinite().all()
    return ((value.double() - expected).norm() / expected.norm()).item()


def plain_attention(
    packed: Tensor, rope: RotaryEmbedding | None, num_heads: int, starts: Tensor
) -> Tensor:
    parts = packed.unflatten(-1, (3, num_heads, -1)).permute(2, 0, 3, 1, 4)
    query, key, value = parts.unbind(0)
    if rope is not None:
        query, key = rope(query), rope(key)
    mixed = scaled_dot_product_attention(query, key, value, document_mask(starts).unsqueeze(1))
    return mixed.transpose(1, 2).flatten(-2)


def packed_case(
    shape: tuple[int, int, int, int], dtype: torch.dtype, rotate: bool
) -> tuple[Tensor, Tensor, RotaryEmbedding | None]:
    """Packed projections, a gradient of the output, and RoPE tables longer than the text."""
    batch, seq, num_heads, d_head = shape
    d_model = num_heads * d_head
    packed = torch.randn(batch, seq, 3 * d_model, device="cuda", dtype=dtype).requires_grad_()
    d_out = torch.randn(batch, seq, d_model, device="cuda", dtype=dtype)
    rope = RotaryEmbedding(10_000.0, d_head, 2 * seq, device="cuda") if rotate else None
    return packed, d_out, rope


def fast_attention(
    packed: Tensor, rope: RotaryEmbedding | None, num_heads: int, starts: Tensor | None = None
) -> Tensor:
    rotation = None if rope is None else (rope.cos, rope.sin)
    return kernels.packed_attention(packed, num_heads, rotation, document_starts=starts)


def document_starts(packed: Tensor, length: int) -> Tensor:
    """Starts of documents of about this length; some end within a tile, others at its end."""
    is_first = torch.rand(packed.shape[:2], device="cuda") < 1 / length
    is_first[0, 64::128] = True
    return sequence_starts(is_first)


@pytest.mark.parametrize("is_masked", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("normalizes", [True, False])
@pytest.mark.parametrize("rotates", [True, False])
@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_packed_attention_with_norm_rope_and_value_embeddings_equals_the_formula(
    shape: tuple[int, int, int, int],
    adds: bool,
    rotates: bool,
    normalizes: bool,
    dtype: torch.dtype,
    is_masked: bool,
) -> None:
    packed, d_out, rope = packed_case(shape, dtype, rotate=rotates)
    starts = document_starts(packed, 60) if is_masked else None
    gains = (1 + 0.3 * torch.randn(2, shape[3], device="cuda")).requires_grad_()
    # All positive, so that the sum in the factor's gradient does not cancel.
    d_out, extra = d_out.abs(), torch.rand_like(d_out).requires_grad_()
    factor = torch.full((1,), 0.7, device="cuda").requires_grad_()
    rotation = None if rope is None else (rope.cos, rope.sin)
    sides = (gains[0], gains[1]) if normalizes else None, 1e-3, (extra, factor) if adds else None
    out = kernels.packed_attention(packed, shape[2], rotation, *sides, starts)
    inputs = (packed, *(gains,) * normalizes, *(extra, factor) * adds)
    wide = [one.detach().double().requires_grad_() for one in (packed, gains, extra, factor)]
    expected_inputs = (wide[0], *wide[1:2] * normalizes, *wide[2:] * adds)
    parts = wide[0].unflatten(-1, (3, *shape[2:]))
    heads, values = parts[..., :2, :, :], parts[..., 2:, :, :].flatten(-3)
    if normalizes:
        heads = heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + 1e-3)
        heads = heads * wide[1][:, None, :]
    if adds:
        values = values + wide[3] * wide[2]
    prepared = torch.cat([heads.flatten(-3), values], dim=-1)
    whole = torch.zeros(shape[:2], dtype=torch.int64, device="cuda")
    expected = plain_attention(prepared, rope, shape[2], whole if starts is None else starts)
    assert relative_error(out, expected) < 1e-2
    ours = torch.autograd.grad(out, inputs, d_out)
    theirs = torch.autograd.grad(expected, expected_inputs, d_out.double())
    assert out.dtype == dtype
    # Compare each part separately, so that large ones do not hide errors in small ones.
    parts_of = [*ours[0].chunk(3, -1), *ours[1:]], [*theirs[0].chunk(3, -1), *theirs[1:]]
    for one, other in zip(*parts_of, strict=True):
        assert relative_error(one, other) < 2e-2


@pytest.mark.parametrize("is_masked", [True, False])
@pytest.mark.parametrize("rotate", [True, False])
@pytest.mark.parametrize("shape", SHORT, ids=str)
def test_short_attention_is_deterministic_for_any_strides(
    shape: tuple[int, int, int, int], rotate: bool, is_masked: bool
) -> None:
    packed, d_out, rope = packed_case(shape, torch.bfloat16, rotate)
    starts = document_starts(packed, 50) if is_masked else None
    crooked = d_out.transpose(0, 1).contiguous().transpose(0, 1)
    outs = [fast_attention(packed, rope, shape[2], starts) for _ in range(2)]
    gradients = [
        torch.autograd.grad(out, packed, d)[0]
        for out, d in zip(outs, (d_out, crooked), strict=True)
    ]
    assert torch.equal(*outs) and torch.equal(*gradients)


def test_huge_scores_stay_finite() -> None:
    packed, d_out, rope = packed_case((2, 200, 4, 64), torch.bfloat16, rotate=True)
    loud = (30 * packed.detach()).requires_grad_()
    out = fast_attention(loud, rope, 4)
    assert out.isfinite().all()
    assert torch.autograd.grad(out, loud, d_out)[0].isfinite().all()


@pytest.mark.parametrize(
    ("d_model", "num_heads", "seq"),
    [(48, 8, 40), (320, 2, 40), (256, 2, 40), (96, 2, 40), (64, 2, 1), (64, 2, 2), (64, 2, 15)],
)
def test_unsupported_head_sizes_and_lengths_fall_back(
    d_model: int, num_heads: int, seq: int, agree: Any
) -> None:
    layer = MultiHeadSelfAttention(d_model, num_heads, max_seq_len=64, theta=1e4, device="cuda")
    x = torch.randn(2, seq, d_model, device="cuda", requires_grad=True)
    with kernels.reference():
        expected = layer(x)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = layer(x)
    agree(out, expected, [x], relative=3e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 2), (7, 2 * 33), (2, 3, 2 * 1344), (5, 2 * 2048)])
def test_packed_swiglu_equals_the_formula(
    shape: tuple[int, ...], dtype: torch.dtype, agree: Any
) -> None:
    packed = (3 * torch.randn(shape, device="cuda")).to(dtype).requires_grad_()
    gate, up = packed.double().chunk(2, dim=-1)
    agree(kernels.packed_swiglu(packed), silu(gate) * up, [packed], relative=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("z_loss", [0.0, 1e-2])
@pytest.mark.parametrize("vocab_size", [2, 97, 2_048, 10_000, 50_257])
def test_cross_entropy_of_a_chunk_equals_the_formula(
    vocab_size: int, z_loss: float, dtype: torch.dtype
) -> None:
    from groundup.nn.kernels.cuda_train.cross_entropy import chunk_loss_and_gradient

    rows = 33
    logits = (4 * torch.randn(rows, vocab_size, device="cuda")).to(dtype)
    targets = torch.randint(vocab_size, (rows,), device="cuda")
    targets[0], targets[1] = 0, vocab_size - 1
    wide = logits.double().requires_grad_()
    log_total = torch.logsumexp(wide, dim=-1)
    expected = functional.cross_entropy(wide, targets, reduction="none")
    expected = expected + z_loss * log_total.square()
    (d_wide,) = torch.autograd.grad(expected.sum(), wide)

    losses = torch.empty(rows, device="cuda")
    chunk_loss_and_gradient(logits, targets, losses, z_loss)
    assert relative_error(losses, expected.detach()) < 1e-4
    assert relative_error(logits, d_wide) < (1e-2 if dtype == torch.bfloat16 else 1e-4)


def gradients(model: TransformerLM, loss: Tensor) -> dict[str, Tensor]:
    names = [name for name, _ in model.named_parameters()]
    return dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("context_length", [128, 320])
def test_a_model_in_bfloat16_is_close_to_its_reference(context_length: int, compiled: bool) -> None:
    shape: Any = {"vocab_size": 501, "context_length": context_length, "d_model": 128}
    fused = TransformerLM(**shape, num_layers=2, num_heads=4, device="cuda")
    plain = copy.deepcopy(fused)
    if compiled:
        for block in fused.blocks:
            block.compile()
    ids, targets = torch.randint(501, (2, 4, context_length), device="cuda").unbind(0)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = fused.loss(ids, targets, z_loss=1e-4)
    with kernels.reference():
        expected = plain.loss(ids, targets, z_loss=1e-4)
    assert loss.item() == pytest.approx(expected.item(), rel=5e-3)
    ours, theirs = gradients(fused, loss), gradients(plain, expected)
    for name, gradient in ours.items():
        assert relative_error(gradient, theirs[name].double()) < 0.05, name


def test_custom_ops_pass_opcheck() -> None:
    """Schemas, fake tensors and autograd registration."""
    attention, swiglu = kernels.cuda_attention, kernels.swiglu
    kinds = ("test_schema", "test_autograd_registration", "test_faketensor")
    for seq in (64, 300):
        packed, _, rope = packed_case((2, seq, 2, 32), torch.bfloat16, rotate=True)
        assert rope is not None
        gains = tuple(torch.randn(32, device="cuda").requires_grad_() for _ in range(2))
        extra = torch.randn(2, seq, 64, device="cuda").bfloat16().requires_grad_()
        factor = torch.ones(1, device="cuda").requires_grad_()
        for sides in (
            (rope.cos, rope.sin, None, None, 0.0, None, None, None),
            (None, None, *gains, 1e-5, None, None, document_starts(packed, 20)),
            (rope.cos, rope.sin, *gains, 1e-5, extra, factor, document_starts(packed, 20)),
            (None, None, None, None, 0.0, None, None, None),
        ):
            arguments = (packed, 2, *sides)
            torch.library.opcheck(attention.packed_attention, arguments, test_utils=kinds)
    packed = torch.randn(3, 10, device="cuda").bfloat16().requires_grad_()
    torch.library.opcheck(swiglu.packed_swiglu, (packed,), test_utils=kinds)
