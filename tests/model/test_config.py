"""Model settings: rules, presets and errors; and custom parts."""

import functools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from groundup.config import load_settings
from groundup.errors import ConfigError
from groundup.model import PRESETS, ModelConfig, TransformerLM, preset
from groundup.model.parts import identify, swapped_parts
from groundup.model.transformer import weight_shapes


def num_parameters(config: ModelConfig) -> int:
    return sum(map(math.prod, weight_shapes(config).values()))


@pytest.mark.parametrize(
    ("d_model", "d_ff"), [(1, 64), (24, 64), (25, 128), (48, 128), (192, 512), (512, 1_408)]
)
def test_d_ff_is_eight_thirds_rounded_up_to_64(d_model: int, d_ff: int) -> None:
    config = ModelConfig(d_model=d_model, num_heads=1, positions="none")
    assert config.feed_forward_dim == d_ff
    assert config.model_copy(update={"d_ff": 1_001}).feed_forward_dim == 1_001


@pytest.mark.parametrize("d_model", [64, 200])
def test_all_feed_forward_kinds_have_the_same_number_of_parameters(d_model: int) -> None:
    shape = {"d_model": d_model, "num_heads": 4, "num_layers": 2, "vocab_size": 100}
    kinds = ("swiglu", "silu", "gelu", "relu2")
    assert len({num_parameters(ModelConfig(**shape, feed_forward=kind)) for kind in kinds}) == 1


def test_presets_have_their_parameters() -> None:
    # Two tables, four blocks of four square and three feed-forward matrices, nine norms.
    expected = 2 * 10_000 * 512 + 4 * (4 * 512**2 + 3 * 512 * 1_344) + 9 * 512
    assert num_parameters(preset("tinystories")) == expected == 22_696_448
    assert num_parameters(preset("gpt2-xl")) == 2_127_057_600
    assert len(PRESETS) == 6 and not any(config.tie_embeddings for config in PRESETS.values())


def test_an_unknown_preset_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'gpt2-smal'.*did you mean gpt2-small"):
        preset("gpt2-smal")


@pytest.mark.parametrize(
    ("settings", "values"),
    [
        ({"d_model": 100, "num_heads": 16}, ["d_model 100", "num_heads 16"]),
        ({"num_heads": 16, "num_kv_heads": 5}, ["num_kv_heads 5", "num_heads 16"]),
        ({"num_heads": 4, "num_kv_heads": 8}, ["num_kv_heads 8", "num_heads 4"]),
        ({"d_model": 30, "num_heads": 2}, ["d_model 30", "num_heads 2", "15"]),
    ],
)
def test_invalid_shapes_are_rejected_with_both_values(
    settings: dict[str, int], values: list[str]
) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_settings(ModelConfig, overrides=settings)
    assert all(value in str(refusal.value) for value in values)


@pytest.mark.parametrize(
    "settings",
    [
        *({name: 0} for name in ("vocab_size", "context_length", "num_heads", "d_ff")),
        *({name: 0} for name in ("num_kv_heads", "rope_theta", "norm_eps", "embedding_scale")),
        *({name: "odd"} for name in ("value_embeddings", "norm", "positions", "feed_forward")),
        *({"num_layers": -1}, {"logit_soft_cap": 30.0}, {"x0_skip": True}, {"n_layers": 4}),
        *({"embedding_scale": math.inf}, {"norm_eps": math.nan}),
    ],
)
def test_values_out_of_range_are_rejected_by_name(settings: dict[str, object]) -> None:
    (name,) = settings
    with pytest.raises(ConfigError, match=name):
        load_settings(ModelConfig, overrides=settings)


def test_removed_settings_load_with_a_value_that_had_no_effect() -> None:
    inactive = {"logit_soft_cap": None, "x0_skip": False, "kernels": "reference"}
    assert load_settings(ModelConfig, overrides=inactive) == ModelConfig()
    assert ModelConfig.model_validate(inactive) == ModelConfig()


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
