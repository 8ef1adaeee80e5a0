"""Converts model settings to config.json and GGUF metadata, and config.json back.

Our default block is Llama's; with query/key norm it is Qwen3's. Settings that the other side cannot
express are refused by name, but transformers runs any model with `modeling_groundup` next to it.
`weights` converts the weights.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pydantic

from groundup.config import describe_validation_error
from groundup.errors import CheckpointError, ConfigError
from groundup.model.config import ModelConfig
from groundup.nn.limits import UNGATED


class Architecture(NamedTuple):
    """A model family that computes the same as ours: its name in config.json and GGUF files, its
    class in transformers, and that class's defaults for settings missing in config.json."""

    model_type: str
    class_name: str
    num_kv_heads: int | None = None
    head_dim: int | None = None
    window: int | None = None


LLAMA = Architecture("llama", "LlamaForCausalLM")
QWEN3 = Architecture("qwen3", "Qwen3ForCausalLM", num_kv_heads=32, head_dim=128)
MISTRAL = Architecture("mistral", "MistralForCausalLM", num_kv_heads=8, window=4096)
GROUNDUP = Architecture("groundup", "GroundupForCausalLM")
_ARCHITECTURES = (LLAMA, QWEN3, MISTRAL, GROUNDUP)
MODELING_NAME = "modeling_groundup.py"

# Defaults of transformers for all of these architectures.
_DEFAULT_EPS = 1e-6
_DEFAULT_THETA = 10_000.0


class Rule(NamedTuple):
    """How the formats express a setting: its key in config.json, the GGUFWriter method without
    `add_`, the only supported values and why, the property to write instead, and the values that
    our modeling file supports.
    """

    huggingface: str | None = None
    gguf: str | None = None
    only: tuple[object, ...] = ()
    reason: str = ""
    value: str | None = None
    bundled: tuple[object, ...] = ()


RULES: Mapping[str, Rule] = {
    "vocab_size": Rule("vocab_size", "vocab_size"),
    "context_length": Rule("max_position_embeddings", "context_length"),
    "d_model": Rule("hidden_size", "embedding_length"),
    "d_ff": Rule("intermediate_size", "feed_forward_length", value="feed_forward_dim"),
    "num_layers": Rule("num_hidden_layers", "block_count"),
    "num_heads": Rule("num_attention_heads", "head_count"),
    "num_kv_heads": Rule("num_key_value_heads", "head_count_kv", value="key_value_heads"),
    "norm_eps": Rule("rms_norm_eps", "layer_norm_rms_eps"),
    "rope_theta": Rule("rope_theta", "rope_freq_base"),
    # Expressed by tie_word_embeddings, or by two tables with the scale folded into the first.
    "tie_embeddings": Rule(),
    "embedding_scale": Rule(),
    # Selects the Qwen3 architecture.
    "qk_norm": Rule(),
    "norm": Rule(only=("pre",), reason="Llama is pre-norm"),
    "positions": Rule(only=("rope",), reason="Llama always uses RoPE"),
    "attention": Rule(only=("full",), reason="Llama has full attention", bundled=("full",)),
    "feed_forward": Rule(
        only=("swiglu",), reason="Llama has only swiglu", bundled=("swiglu", *UNGATED)
    ),
    "gated_attention": Rule(only=(False,), reason="Llama has no gated attention"),
    "value_embeddings": Rule(only=("none",), reason="Llama has no value embeddings"),
    # Has no effect within a single document; the model card says so.
    "document_separator": Rule(),
    # Training only.
    "initialization": Rule(),
    "zero_outputs": Rule(),
    "dropout": Rule(),
}
"""By field of `ModelConfig`. Fields without a rule must have their default."""


def express(config: ModelConfig, target: Literal["huggingface", "gguf"]) -> dict[str, Any]:
    """The settings that have a key in a format."""
    rules = {getattr(rule, target): rule.value or name for name, rule in RULES.items()}
    return {key: getattr(config, name) for key, name in rules.items() if key is not None}


def check_exportable(config: ModelConfig, *, can_bundle: bool = False) -> Architecture:
    """Return the architecture that computes the same, or raise ConfigError for settings that none
    supports.

    can_bundle: whether our modeling file, which supports more, may be exported too.
    """
    problems = [] if config.num_layers else ["num_layers is 0, and Llama has at least one block"]
    needs_bundle = False
    for name, field in ModelConfig.model_fields.items():
        value, default = getattr(config, name), (field.default,)
        rule = RULES.get(name, Rule(only=default, reason="no format has it", bundled=default))
        if rule.only and value not in rule.only:
            needs_bundle = True
            if not can_bundle or (rule.bundled and value not in rule.bundled):
                problems.append(f"{name} is {value}, and {rule.reason}")
    if problems:
        raise ConfigError(f"this model cannot be exported: {'; '.join(problems)}")
    if needs_bundle:
        return GROUNDUP
    return QWEN3 if config.qk_norm else LLAMA


def has_one_table(config: ModelConfig) -> bool:
    """Whether the export can tie its embeddings: the formats have no scale between them."""
    return config.tie_embeddings and config.input_scale == 1


def to_config_json(config: ModelConfig, dtype_name: str) -> dict[str, Any]:
    """The model's config.json, without the ids of special tokens."""
    architecture = check_exportable(config, can_bundle=True)
    value: dict[str, Any] = {"architectures": [architecture.class_name]}
    value["model_type"] = architecture.model_type
    if architecture is GROUNDUP:
        module = MODELING_NAME.removesuffix(".py")
        classes = {"AutoConfig": "GroundupConfig", "AutoModelForCausalLM": architecture.class_name}
        given = {"d_ff": config.feed_forward_dim, "num_kv_heads": config.key_value_heads}
        return value | {
            "auto_map": {kind: f"{module}.{name}" for kind, name in classes.items()},
            "groundup": config.with_(**given, embedding_scale=config.input_scale).model_dump(),
            "vocab_size": config.vocab_size,
            "hidden_size": config.d_model,
            "max_position_embeddings": config.context_length,
            "tie_word_embeddings": config.tie_embeddings,
            "dtype": dtype_name,
        }
    value |= {
        **express(config, "huggingface"),
        "head_dim": config.d_head,
        "hidden_act": "silu",
        # transformers 5 and later; earlier releases read rope_theta.
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "tie_word_embeddings": has_one_table(config),
        "attention_bias": False,
        "torch_dtype": dtype_name,
        "dtype": dtype_name,
    }
    return value | ({"mlp_bias": False} if architecture is LLAMA else {})


def read_config_json(
    value: dict[str, Any], path: Path, context_length: int | None = None
) -> tuple[ModelConfig, Architecture]:
    """Convert config.json to our settings and its architecture.

    context_length: a context shorter than the checkpoint's.
    """
    architecture = _find_architecture(value, path)
    known_positions = _integer(value, "max_position_embeddings", path)
    if context_length is not None and context_length > known_positions:
        raise CheckpointError(
            f"context_length {context_length} is more than the {known_positions} positions in "
            f"{path}: give less"
        )
    settings: Any = value.get("groundup")
    if architecture is not GROUNDUP or not isinstance(settings, dict):
        settings = _read_settings(value, architecture, path)
    settings = {**settings, "context_length": context_length or known_positions}
    try:
        return ModelConfig.model_validate(settings), architecture
    except pydantic.ValidationError as error:
        raise CheckpointError(
            f"{path} is not a model that groundup supports: {describe_validation_error(error)}"
        ) from error


def _read_settings(value: dict[str, Any], architecture: Architecture, path: Path) -> dict[str, Any]:
    """Convert the settings of the other architectures."""
    problems = list(_differences(value, architecture, path))
    if problems:
        raise CheckpointError(f"{path} is not supported by groundup: {'; '.join(problems)}")
    names = ("vocab_size", "d_model", "num_layers", "num_heads", "d_ff")
    found = {name: _integer(value, str(RULES[name].huggingface), path) for name in names}
    num_kv_heads = value.get("num_key_value_heads")
    if num_kv_heads is None:
        num_kv_heads = architecture.num_kv_heads
    is_tied = bool(value.get("tie_word_embeddings", False))
    return found | {
        "num_kv_heads": None if num_kv_heads == found["num_heads"] else num_kv_heads,
        "rope_theta": _rope(value)["rope_theta"],
        "norm_eps": value.get("rms_norm_eps", _DEFAULT_EPS),
        "tie_embeddings": is_tied,
        # Other models do not scale embeddings.
        "embedding_scale": 1.0 if is_tied else None,
        "qk_norm": architecture is QWEN3,
    }


def _find_architecture(value: dict[str, Any], path: Path) -> Architecture:
    names = value.get("architectures")
    name = names[0] if isinstance(names, list) and names else value.get("model_type")
    for one in _ARCHITECTURES:
        if name in (one.class_name, one.model_type):
            return one
    raise CheckpointError(
        f"{path} has the unsupported architecture {name!r:.80}: use a checkpoint of one of "
        f"{', '.join(one.class_name for one in _ARCHITECTURES)}"
    )


def _differences(value: dict[str, Any], architecture: Architecture, path: Path) -> Iterator[str]:
    """Yield the unsupported settings, by their names in the file."""
    if value.get("hidden_act", "silu") not in ("silu", "swish"):
        yield f"hidden_act is {value['hidden_act']!r:.40}, not silu"
    for key in ("attention_bias", "mlp_bias"):
        if value.get(key):
            yield f"{key} is set, but our layers have no bias"
    if value.get("quantization_config"):
        yield "quantization_config is set, but only unquantized weights are supported"
    rope = _rope(value)
    if rope["rope_type"] != "default":
        yield f"rope_scaling is of type {rope['rope_type']!r:.40}, but ours does not scale RoPE"
    if rope.get("partial_rotary_factor") not in (None, 1.0):
        yield f"partial_rotary_factor is {rope['partial_rotary_factor']!r:.40}, not 1"
    window = value.get("sliding_window", architecture.window)
    if architecture is QWEN3 and not value.get("use_sliding_window", False):
        window = None
    if window is not None:
        yield f"sliding_window is {window!r:.40}, but imported models have full attention"
    layers = value.get("layer_types") or []
    if not isinstance(layers, list) or any(one != "full_attention" for one in layers):
        yield f"layer_types is {layers!r:.80}, but imported layers all have full_attention"
    size = _integer(value, "hidden_size", path)
    num_heads = _integer(value, "num_attention_heads", path)
    head_dim = value.get("head_dim") or architecture.head_dim
    if head_dim is not None and (type(head_dim) is not int or head_dim * num_heads != size):
        yield f"head_dim is {head_dim!r:.40}, but ours is hidden_size {size} / {num_heads} heads"


def _rope(value: dict[str, Any]) -> dict[str, Any]:
    """The RoPE settings, from all the keys that releases of transformers have used."""
    rope: dict[str, Any] = {"rope_theta": _DEFAULT_THETA}
    rope |= {key: value[key] for key in ("rope_theta", "partial_rotary_factor") if key in value}
    kind: Any = "default"
    for one in (value.get("rope_parameters"), value.get("rope_scaling")):
        if isinstance(one, dict):
            rope |= one
            # Each has its own type, and either may scale.
            found = one.get("rope_type", one.get("type", "default"))
            kind = found if kind == "default" else kind
    return {**rope, "rope_type": kind}


def _integer(value: dict[str, Any], key: str, path: Path) -> int:
    number = value.get(key)
    if type(number) is not int:
        found = f"is {number!r:.40}" if key in value else "is missing"
        raise CheckpointError(f"{key} {found} in {path}: it must be an integer")
    return number
