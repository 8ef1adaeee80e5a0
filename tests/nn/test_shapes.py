"""The shapes written on public signatures are true: checked while the layers run."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import pytest
import torch
from jaxtyping import AbstractArray, jaxtyped
from torch import Tensor, nn

from groundup.model import TransformerLM
from groundup.nn import (
    Embedding,
    FeedForward,
    Linear,
    MultiHeadSelfAttention,
    RMSNorm,
    RotaryEmbedding,
    SwiGLU,
    TransformerBlock,
    functional,
)

LAYERS: list[type[nn.Module]] = [
    Embedding,
    FeedForward,
    Linear,
    MultiHeadSelfAttention,
    RMSNorm,
    RotaryEmbedding,
    SwiGLU,
    TransformerBlock,
]
FUNCTIONS = ["silu", "gelu", "squared_relu", "softmax", "scaled_dot_product_attention"]
MODEL_METHODS = ["forward", "hidden", "loss"]
SIGNATURES = [
    *(layer.forward for layer in LAYERS),
    *(getattr(functional, name) for name in FUNCTIONS),
    *(getattr(TransformerLM, name) for name in MODEL_METHODS),
]


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, which now refuses tensors that do not fit its annotations."""
    hints = get_type_hints(function)
    signature = inspect.signature(function)

    def check(name: str, value: Any) -> None:
        hint: Any = hints.get(name)
        try:
            fits = isinstance(value, hint)
        except TypeError:  # a Literal, say, which holds no shape
            return
        shape = getattr(value, "shape", value)
        assert fits, f"{name} of {function.__qualname__} is {shape}, not {hint}"

    @functools.wraps(function)
    def wrapper(*arguments: Any, **keywords: Any) -> Any:
        with jaxtyped("context"):
            for name, value in signature.bind(*arguments, **keywords).arguments.items():
                check(name, value)
            result = function(*arguments, **keywords)
            check("return", result)
        return result

    return wrapper


@pytest.fixture
def checking(monkeypatch: pytest.MonkeyPatch) -> None:
    for layer in LAYERS:
        monkeypatch.setattr(layer, "forward", checked(layer.forward))
    for method in MODEL_METHODS:
        monkeypatch.setattr(TransformerLM, method, checked(getattr(TransformerLM, method)))


@pytest.mark.usefixtures("checking")
@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("feed_forward", ["swiglu", "gelu"])
@pytest.mark.parametrize("leading", [(), (2, 1)])
def test_shapes_hold_throughout_the_model(leading: tuple[int, ...], feed_forward: str) -> None:
    model = TransformerLM(
        19, 8, 12, 2, 6, 20, 1e4, num_kv_heads=2, qk_norm=True, feed_forward=feed_forward,
    )  # fmt: skip
    ids = torch.randint(19, (*leading, 7))
    assert model(ids).shape == (*leading, 7, 19)
    assert model.loss(ids, ids).shape == ()


def test_shapes_hold_on_the_functions() -> None:
    functions = {name: checked(getattr(functional, name)) for name in FUNCTIONS}
    x = torch.randn(2, 3, 4)
    for name in ("silu", "gelu", "squared_relu"):
        functions[name](x)
    functions["softmax"](x, dim=1)
    attend = functions["scaled_dot_product_attention"]
    query, key, value = torch.randn(2, 5, 4), torch.randn(2, 3, 4), torch.randn(2, 3, 6)
    attend(query, key, value)
    attend(query, key, value, torch.ones(2, 5, 3, dtype=torch.bool))


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda function: function.__qualname__)
def test_every_tensor_of_a_public_signature_has_a_shape(function: Callable[..., Any]) -> None:
    hints = get_type_hints(function)
    assert hints.keys() == {*inspect.signature(function).parameters, "return"} - {"self"}
    for name, hint in hints.items():
        for kind in get_args(hint) or (hint,):
            is_bare = kind in (Any, object, Tensor)
            assert not is_bare, f"{name} of {function.__qualname__} is {kind}, of no shape"
    assert issubclass(hints["return"], AbstractArray)
