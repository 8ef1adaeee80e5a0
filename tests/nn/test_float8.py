"""Float8 matmuls equal those in bfloat16 up to the rounding of eight bits."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from groundup.model import TransformerLM
from groundup.nn import float8, kernels
from groundup.nn.limits import FEED_FORWARDS
from groundup.nn.linear import Linear
from groundup.nn.linear_cross_entropy import _loss_and_gradient, linear_cross_entropy

# torch warns about it if the first matmul of a process is in a backward pass.
pytestmark = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")

_HAS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
on_hopper = pytest.mark.skipif(not _HAS_HOPPER, reason="float8 matmuls need a GPU from Hopper on")


def _apart(x: Tensor, y: Tensor) -> float:
    return float((x.double() - y.double()).norm() / y.double().norm())


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_rows_are_rounded_to_three_bits_at_any_scale(size: float) -> None:
    x = size * torch.randn(16, 64).exp()
    values, scale = float8.rounded_rows(x)
    assert values.float().abs().amax(dim=1).eq(448).all()
    torch.testing.assert_close(values.float() * scale, x, rtol=1 / 16, atol=size * 1e-3)


def test_large_values_are_clipped() -> None:
    values, scale = float8.rounded(torch.tensor([1.0, -1e9, 1e9]), 8.0)
    assert (values.float() * scale).tolist() == [1.0, -56.0, 56.0]


@on_hopper
@pytest.mark.parametrize("width", [48, 512, 768, 2_304, 5_504])
def test_the_kernel_rounds_rows_like_torch(width: int) -> None:
    x = torch.randn(33, width, dtype=torch.bfloat16).exp()
    values, scale = float8.rounded_rows(x)
    of_kernel, its_scale = float8.rounded_rows(x.cuda())
    torch.testing.assert_close(its_scale.cpu(), scale, rtol=1e-6, atol=0)
    # A division that rounds differently moves a few values to the next float8 value.
    apart = of_kernel.cpu().float() - values.float()
    assert (apart != 0).float().mean() < 0.01
    assert (apart.abs() <= values.float().abs() / 7).all()


@on_hopper
def test_nan_stays_nan() -> None:
    x = torch.randn(16, 64, device="cuda", dtype=torch.bfloat16)
    x[3, 5] = torch.nan
    small = kernels.rounding.rounded_both_ways(x, 8.0)[0], kernels.rounding.rounded_rows(x)[0]
    assert all(one.isnan().sum() == one[3, 5].isnan() == 1 for one in map(Tensor.float, small))


@on_hopper
@pytest.mark.parametrize("d_ff", [640, 1_104])
@pytest.mark.parametrize("kind", ["swiglu", "relu2"])
def test_feed_forward_and_its_gradients_in_float8(kind: str, d_ff: int) -> None:
    layer = FEED_FORWARDS[kind]()(640, d_ff, device="cuda")
    x = torch.randn(4, 32, 640, device="cuda", dtype=torch.bfloat16)
    plain = _results(layer, x)
    for name, part in layer.named_children():
        assert isinstance(part, Linear)
        part.float8_inputs = "any" if name == "down" else "normalized"
    rounded = _results(layer, x)
    for a, b in zip(rounded, plain, strict=True):
        assert 1e-3 < _apart(a, b) < 0.1
    # Evaluation does not use float8.
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        torch.testing.assert_close(layer(x), plain[0], rtol=0, atol=0)


@on_hopper
@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("chunk_rows", [41, 128])
def test_the_output_layer_and_its_gradients_in_float8(later: bool, chunk_rows: int) -> None:
    hidden = torch.randn(128, 64, device="cuda", dtype=torch.bfloat16)
    weight = 0.1 * torch.randn(1_008, 64, device="cuda")
    targets = torch.randint(1_008, (128,), device="cuda")
    second = (targets.roll(1), torch.tensor(0.3, device="cuda")) if later else None
    results = []
    for in_float8 in (False, True):
        inputs = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = linear_cross_entropy(
                *inputs, targets, mtp=second, chunk_rows=chunk_rows, in_float8=in_float8
            )
        loss.backward()
        results.append((loss.detach(), *(x.grad for x in inputs if x.grad is not None)))
    plain, rounded = results
    assert _apart(rounded[0], plain[0]) < 0.003
    assert 1e-3 < _apart(rounded[1], plain[1]) < 0.08
    assert 1e-4 < _apart(rounded[2], plain[2]) < 0.05


def _results(layer: torch.nn.Module, x: Tensor) -> list[Tensor]:
    """The output and the gradients of input and weights."""
    layer.zero_grad()
    x = x.clone().requires_grad_()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = layer(x)
    y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y))
    assert x.grad is not None
    return [y.detach(), x.grad, *(p.grad for p in layer.parameters() if p.grad is not None)]


@pytest.mark.parametrize(("norm", "of_inner"), [("pre", "normalized"), ("none", "any")])
def test_use_float8_marks_layers_with_normalized_inputs(norm: str, of_inner: str) -> None:
    sizes: dict[str, Any] = {"vocab_size": 64, "context_length": 16, "d_model": 32}
    model = TransformerLM(**sizes, num_layers=1, num_heads=2, norm=norm, gated_attention=True)
    ids = torch.arange(16)[None]
    before = model.loss(ids, ids)
    model.use_float8()
    found = {
        name.rpartition(".")[2]: layer.float8_inputs
        for name, layer in model.named_modules()
        if isinstance(layer, Linear)
    }
    assert found == {
        **dict.fromkeys(("query", "key", "value", "gate", "up"), of_inner),
        **dict.fromkeys(("output", "down"), "any"),
        **dict.fromkeys(("head_gate", "lm_head"), "no"),
    }
    assert model._has_float8_output == (norm == "pre")
    # Without float8 nothing changes.
    assert model.loss(ids, ids) == before
    model.use_float8(False)
    assert {getattr(layer, "float8_inputs", "no") for layer in model.modules()} == {"no"}
    assert not model._has_float8_output


@pytest.mark.parametrize("feed_forward", ["swiglu", "relu2"])
def test_training_in_float8_is_close_to_bfloat16(
    monkeypatch: pytest.MonkeyPatch, feed_forward: str
) -> None:
    """Emulates the GPU's operations with torch formulas."""
    chunk_rows: list[int] = []

    def rounded_by(x: Tensor, factor: float) -> Tensor:
        return float8.rounded(x, factor).values

    def matmul(left: Any, right: Tensor, is_precise: bool = False, out: Any = None) -> Tensor:
        y = (left.values.float() * left.scale) @ (right.float() / float8.WEIGHT_FACTOR).T
        return y.bfloat16() if out is None else out.copy_(y)

    def loss_and_gradient(logits: Tensor, *sides: Any) -> Tensor:
        losses = _loss_and_gradient(logits, *sides[:-1])
        if (rounded := sides[-1]) is not None:
            rounded[0].copy_(logits.float() * rounded[1])
            chunk_rows.append(len(logits))
        return losses

    rounding = SimpleNamespace(
        rounded_both_ways=lambda x, factor: (rounded_by(x, factor), rounded_by(x.T, factor)),
    )
    monkeypatch.setattr(kernels, "rounding", rounding, raising=False)
    monkeypatch.setattr(kernels, "loss_and_gradient", loss_and_gradient)
    monkeypatch.setattr(float8, "matmul", matmul)
    monkeypatch.setattr(float8, "is_supported", lambda x, num_columns: x.dtype == torch.bfloat16)
    sizes: dict[str, Any] = {"vocab_size": 64, "context_length": 16, "d_model": 640, "d_ff": 656}
    model = TransformerLM(**sizes, num_layers=1, num_heads=10, feed_forward=feed_forward)
    ids, targets = torch.randint(64, (2, 2, 16))

    def learned() -> tuple[Tensor, Tensor]:
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model.loss(ids, targets, multi_token_weight=torch.tensor(0.3))
        loss.backward()
        gradients = [one.grad.flatten() for one in model.parameters() if one.grad is not None]
        return loss.detach(), torch.cat(gradients)

    plain = learned()
    assert chunk_rows == []
    model.use_float8()
    rounded = learned()
    assert chunk_rows == [32]
    assert 0 < _apart(rounded[0], plain[0]) < 0.01
    assert 0.01 < _apart(rounded[1], plain[1]) < 0.15
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert _apart(model.loss(ids, targets), plain[0]) < 1e-3
