"""Model settings: defaults, presets and validation."""

import math

import pytest

from groundup.config import load_settings
from groundup.errors import ConfigError
from groundup.model import PRESETS, ModelConfig, preset
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
    # Two tables, four blocks of four square and three feed-forward matrices, and nine norms.
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
