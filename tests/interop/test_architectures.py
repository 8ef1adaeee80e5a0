"""Settings to config.json and back: the same model, or an error that names the setting."""

from pathlib import Path
from typing import Any

import pytest

from groundup.errors import CheckpointError, ConfigError
from groundup.interop.architectures import RULES, check_exportable, read_config_json
from groundup.model import ModelConfig

transformers = pytest.importorskip("transformers")

CONFIG_FILE = Path("config.json")
SHAPE = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
LLAMA = {**SHAPE, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}


@pytest.mark.parametrize("name", ["LlamaConfig", "Qwen3Config", "MistralConfig"])
def test_missing_entries_have_the_defaults_of_transformers(name: str) -> None:
    """A shape for which the library's default heads are valid."""
    kind = getattr(transformers, name)
    shape = {**SHAPE, "hidden_size": 4096, "num_attention_heads": 32}
    theirs = kind(**shape)
    silent = {**shape, "model_type": kind.model_type, "sliding_window": None}
    ours, _ = read_config_json(silent, CONFIG_FILE)
    assert ours.key_value_heads == theirs.num_key_value_heads
    assert ours.norm_eps == theirs.rms_norm_eps
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
    assert ours.d_head == theirs.head_dim
    assert ours.tie_embeddings == theirs.tie_word_embeddings


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"architectures": None, "model_type": "mixtral"}, "mixtral"),
        ({"architectures": [["x"]]}, "architecture"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling.*linear"),
        (
            {"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "yarn"}},
            "rope_scaling.*yarn",
        ),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5}}, "rope_scaling.*llama3"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"sliding_window": 64}, "sliding_window"),
        ({"architectures": ["MistralForCausalLM"]}, "sliding_window is 4096"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types.*sliding"),
        ({"layer_types": 3}, "layer_types is 3"),
        ({"head_dim": 32}, "head_dim is 32"),
        ({"architectures": ["Qwen3ForCausalLM"]}, "head_dim is 128"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers is 'two'"),
        ({"num_attention_heads": 0}, "num_heads is 0"),
        ({"num_key_value_heads": 3}, "num_kv_heads"),
        ({"rms_norm_eps": "small"}, "norm_eps"),
        ({"rope_theta": None}, "rope_theta"),
    ],
)
def test_unsupported_settings_are_rejected_by_name(changes: dict[str, Any], name: str) -> None:
    with pytest.raises(CheckpointError, match=name):
        read_config_json({**LLAMA, **changes}, CONFIG_FILE)


def test_fewer_positions_may_be_kept_but_not_more() -> None:
    odd = {**LLAMA, "rope_scaling": "none"}
    assert read_config_json(odd, CONFIG_FILE, context_length=16)[0].context_length == 16
    with pytest.raises(CheckpointError, match="256 is more than the 128"):
        read_config_json(LLAMA, CONFIG_FILE, context_length=256)


def test_a_setting_without_a_rule_must_have_its_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(RULES, "dropout")
    check_exportable(ModelConfig())
    with pytest.raises(ConfigError, match=r"dropout is 0\.5"):
        check_exportable(ModelConfig(dropout=0.5))
