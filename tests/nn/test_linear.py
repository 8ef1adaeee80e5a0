"""The linear layer and the embedding table against torch's own functions."""

import pytest
import torch
from torch.nn import functional

from groundup.nn import Embedding, Linear
from groundup.nn.linear import packed_linear

DTYPES = [torch.float32, torch.float64, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("leading", [(), (3,), (2, 5), (2, 1, 4), (0,)])
def test_linear_is_the_plain_product(leading: tuple[int, ...], dtype: torch.dtype) -> None:
    layer = Linear(7, 5, dtype=dtype)
    x = torch.randn(*leading, 7, dtype=dtype, requires_grad=True)
    d_out = torch.randn(*leading, 5, dtype=dtype)
    out = layer(x)
    twin = functional.linear(x, layer.weight)
    assert out.shape == (*leading, 5)
    torch.testing.assert_close(out, twin)
    ours = torch.autograd.grad(out, [x, layer.weight], d_out)
    theirs = torch.autograd.grad(twin, [x, layer.weight], d_out)
    torch.testing.assert_close(ours, theirs)


def test_linear_takes_device_and_type_in_third_and_fourth_place() -> None:
    layer = Linear(3, 4, torch.device("cpu"), torch.float64)
    assert layer.weight.shape == (4, 3)
    assert layer.weight.dtype == torch.float64
    assert list(layer.state_dict()) == ["weight"]


@pytest.mark.parametrize("leading", [(), (3,), (2, 5)])
def test_packed_layers_are_the_layers_side_by_side(leading: tuple[int, ...]) -> None:
    layers = [Linear(6, width, dtype=torch.float64) for width in (6, 2, 1)]
    weights = [layer.weight for layer in layers]
    x = torch.randn(*leading, 6, dtype=torch.float64, requires_grad=True)
    packed = packed_linear(x, layers)
    separate = torch.cat([layer(x) for layer in layers], dim=-1)
    torch.testing.assert_close(packed, separate)
    d_out = torch.randn_like(packed)
    torch.testing.assert_close(
        torch.autograd.grad(packed, [x, *weights], d_out),
        torch.autograd.grad(separate, [x, *weights], d_out),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (4,), (2, 9), (3, 1, 2), (0,)])
def test_embedding_picks_rows_and_adds_up_their_gradients(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    layer = Embedding(5, 3, dtype=dtype)
    ids = torch.randint(5, shape)
    out = layer(ids)
    twin = functional.embedding(ids, layer.weight)
    assert out.shape == (*shape, 3)
    assert torch.equal(out, twin)
    d_out = torch.randn_like(out)
    (ours,) = torch.autograd.grad(out, layer.weight, d_out)
    (theirs,) = torch.autograd.grad(twin, layer.weight, d_out)
    torch.testing.assert_close(ours, theirs, atol=0.1 if dtype == torch.bfloat16 else 1e-6, rtol=0)


def test_embedding_takes_narrow_ids_and_refuses_those_beyond_the_table() -> None:
    layer = Embedding(5, 3, torch.device("cpu"), torch.float32)
    assert torch.equal(layer(torch.tensor([4, 0], dtype=torch.int32)), layer.weight[[4, 0]])
    with pytest.raises(IndexError):
        layer(torch.tensor([5]))
