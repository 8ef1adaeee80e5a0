"""Custom parts are identified by their source."""

import functools
from typing import Any

import torch
from torch import Tensor, nn

from groundup.model import ModelConfig, TransformerLM
from groundup.model.parts import identify, swapped_parts

SMALL = ModelConfig(vocab_size=40, context_length=8, d_model=16, num_layers=2, num_heads=2)


class Doubled(nn.Module):
    def __init__(self, factor: float = 2.0) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


def make(number: int) -> Any:
    """Return one of two functions with the same name."""
    if number == 2:

        def part(x: float) -> float:
            return x + 2
    else:

        def part(x: float) -> float:
            return x + 3

    return part


def test_a_model_built_from_settings_has_no_custom_parts() -> None:
    assert swapped_parts(TransformerLM.from_config(SMALL)) == {}
    assert swapped_parts(TransformerLM.from_config(SMALL).eval().to(torch.bfloat16)) == {}


def test_every_change_of_a_model_is_detected() -> None:
    def find(change: Any) -> list[str]:
        model = TransformerLM.from_config(SMALL)
        change(model)
        return list(swapped_parts(model))

    block = "model/blocks/1/feed_forward"
    assert find(lambda model: setattr(model.blocks[1], "feed_forward", Doubled())) == [block]
    assert find(lambda model: setattr(model.final_norm, "eps", 0.1)) == ["model/final_norm"]
    assert find(lambda model: model.final_norm.register_forward_hook(print)) == ["model/final_norm"]
    assert find(lambda model: setattr(model.final_norm, "forward", print)) == ["model/final_norm"]
    assert find(lambda model: model.add_module("more", Doubled())) == ["model/more"]


def test_equal_source_has_equal_identity() -> None:
    assert identify(Doubled()) == identify(Doubled()) != identify(Doubled(3.0))
    assert identify(Doubled()).startswith(f"{Doubled.__module__}.Doubled sha256:")
    one = functools.partial(torch.clamp, min=0.0)
    assert identify(one) == identify(functools.partial(torch.clamp, min=0.0))
    assert identify(one) != identify(functools.partial(torch.clamp, min=1.0))
    assert identify(make(2)) == identify(make(2)) != identify(make(3))
