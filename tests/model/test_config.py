"""The settings of a model: rules, presets and refusals."""

import math
from typing import Any

import pytest

from groundup.config import load_settings, save_yaml
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


@pytest.mark.parametrize("kind", ["silu", "gelu", "relu2"])
@pytest.mark.parametrize("d_model", [64, 96, 200, 512])
def test_all_kinds_have_equally_many_parameters(d_model: int, kind: str) -> None:
    shape = {"d_model": d_model, "num_heads": 4, "num_layers": 2, "vocab_size": 100}
    gated = ModelConfig(**shape, feed_forward="swiglu")
    plain = ModelConfig(**shape, feed_forward=kind)
    assert num_parameters(plain) == num_parameters(gated)


def test_sizes_of_heads_follow_from_the_shape() -> None:
    config = ModelConfig(d_model=96, num_heads=6)
    assert (config.d_head, config.key_value_heads) == (16, 6)
    assert ModelConfig(d_model=96, num_heads=6, num_kv_heads=2).key_value_heads == 2


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("tinystories", (10_000, 256, 512, 4, 16, 1_344)),
        ("gpt2-small", (50_257, 1_024, 768, 12, 12, 3_072)),
        ("gpt2-medium", (50_257, 1_024, 1_024, 24, 16, 4_096)),
        ("gpt2-large", (50_257, 1_024, 1_280, 36, 20, 5_120)),
        ("gpt2-xl", (50_257, 1_024, 1_600, 48, 25, 6_400)),
        ("quickstart", (4_096, 256, 96, 4, 3, 256)),
    ],
)
def test_presets_have_their_shapes(name: str, shape: tuple[int, ...]) -> None:
    config = preset(name)
    assert shape == (
        config.vocab_size, config.context_length, config.d_model, config.num_layers,
        config.num_heads, config.feed_forward_dim,
    )  # fmt: skip
    parts: dict[str, Any] = {}
    if name == "quickstart":
        parts = {"zero_outputs": True, "head_gates": True, "extra_values": "projection"}
    assert config == ModelConfig(
        vocab_size=shape[0], context_length=shape[1], d_model=shape[2], num_layers=shape[3],
        num_heads=shape[4], d_ff=config.d_ff, **parts,
    )  # fmt: skip


def test_presets_have_their_parameters() -> None:
    # Two tables, four blocks of four square and three feed-forward matrices, and nine norms.
    expected = 2 * 10_000 * 512 + 4 * (4 * 512**2 + 3 * 512 * 1_344) + 9 * 512
    assert num_parameters(preset("tinystories")) == expected == 22_696_448
    assert num_parameters(preset("gpt2-xl")) == 2_127_057_600
    assert len(PRESETS) == 6 and not any(config.tie_embeddings for config in PRESETS.values())


def test_an_unknown_preset_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'gpt2-smal'.*did you mean gpt2-small"):
        preset("gpt2-smal")


@pytest.mark.parametrize(
    ("settings", "values"),
    [
        ({"d_model": 100, "num_heads": 16}, ["d_model 100", "num_heads 16"]),
        ({"num_heads": 16, "num_kv_heads": 5}, ["num_kv_heads 5", "num_heads 16"]),
        ({"num_heads": 4, "num_kv_heads": 8}, ["num_kv_heads 8", "num_heads 4"]),
        ({"d_model": 30, "num_heads": 2}, ["d_model 30", "num_heads 2", "odd size 15"]),
    ],
)
def test_impossible_shapes_are_refused_by_both_values(
    settings: dict[str, int], values: list[str]
) -> None:
    with pytest.raises(ConfigError) as validation:
        ModelConfig(**settings)
    with pytest.raises(ConfigError) as refusal:
        load_settings(ModelConfig, overrides=settings)
    for value in values:
        assert value in str(validation.value)
        assert value in str(refusal.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"vocab_size": 0},
        {"context_length": 0},
        {"num_heads": 0},
        {"num_layers": -1},
        {"d_ff": 0},
        {"num_kv_heads": 0},
        {"rope_theta": 0.0},
        {"norm_eps": 0.0},
        {"logit_soft_cap": 30.0},
        {"input_mix": True},
        {"extra_values": "table"},
        {"norm": "middle"},
        {"positions": "learned"},
        {"feed_forward": "relu"},
        {"n_layers": 4},
        {"embedding_scale": 0},
        {"embedding_scale": float("inf")},
        {"rope_theta": float("inf")},
        {"norm_eps": float("nan")},
    ],
)
def test_values_out_of_range_are_refused_by_name(settings: dict[str, object]) -> None:
    (name,) = settings
    with pytest.raises(ConfigError, match=name):
        load_settings(ModelConfig, overrides=settings)


def test_settings_survive_a_file(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("config") / "model.yaml"
    config = ModelConfig(d_ff=None, num_kv_heads=4, norm="post", qk_norm=True)
    save_yaml(path, config)
    assert load_settings(ModelConfig, path) == config


def test_removed_settings_load_with_a_value_that_had_no_effect() -> None:
    inactive = {"logit_soft_cap": None, "input_mix": False, "kernels": "reference"}
    assert load_settings(ModelConfig, overrides=inactive) == ModelConfig()
    assert ModelConfig.model_validate(inactive) == ModelConfig()
    with pytest.raises(ConfigError, match="input_mix"):
        ModelConfig.model_validate({"input_mix": True})
