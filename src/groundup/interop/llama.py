"""The settings of our models as Hugging Face's config.json says them, and what it cannot say.

Llama is our block with defaults; with query/key norm it is Qwen3. The other way is `llama_import`,
the weights are `llama_weights`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from groundup.errors import ConfigError
from groundup.model.config import ModelConfig


@dataclass(frozen=True)
class Architecture:
    """A family of foreign models that compute what ours do."""

    model_type: str
    """As config.json and GGUF files call it."""
    class_name: str
    """The class that transformers runs it with."""


LLAMA = Architecture("llama", "LlamaForCausalLM")
QWEN3 = Architecture("qwen3", "Qwen3ForCausalLM")
MISTRAL = Architecture("mistral", "MistralForCausalLM")


def architecture_of(config: ModelConfig) -> Architecture:
    """The architecture that computes the same; a ConfigError names the settings none has."""
    complaints = list(_inexpressible(config))
    if complaints:
        raise ConfigError(
            f"this model cannot be exported as {LLAMA.class_name}: {'; '.join(complaints)}. Only "
            f"groundup itself can run it; train with the default of these settings to export"
        )
    return QWEN3 if config.qk_norm else LLAMA


def _inexpressible(config: ModelConfig) -> list[str]:
    complaints = []
    if config.norm != "pre":
        complaints.append(f"norm is {config.norm}, and Llama normalizes before each part")
    if config.positions != "rope":
        complaints.append(f"positions is {config.positions}, and Llama always rotates")
    if config.feed_forward != "swiglu":
        complaints.append(f"feed_forward is {config.feed_forward}, and Llama has swiglu alone")
    if config.logit_soft_cap is not None:
        complaints.append(f"logit_soft_cap is {config.logit_soft_cap}, and Llama caps no logits")
    if config.num_layers < 1:
        complaints.append("num_layers is 0, and Llama has at least one block")
    return complaints


def has_one_table(config: ModelConfig) -> bool:
    """Whether input and output are one table for others too, who know no factor between them."""
    return config.tie_embeddings and config.input_scale == 1


def to_config_json(config: ModelConfig, dtype_name: str) -> dict[str, Any]:
    """What config.json says of the model; ids of special tokens come from the tokenizer."""
    architecture = architecture_of(config)
    value: dict[str, Any] = {
        "architectures": [architecture.class_name],
        "model_type": architecture.model_type,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.context_length,
        "hidden_size": config.d_model,
        "intermediate_size": config.feed_forward_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.key_value_heads,
        "head_dim": config.d_head,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        # Releases of transformers before 5 read the first, later ones the second.
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "tie_word_embeddings": has_one_table(config),
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_cache": True,
        "torch_dtype": dtype_name,
        "dtype": dtype_name,
    }
    if architecture is LLAMA:
        value["mlp_bias"] = False
    return value
