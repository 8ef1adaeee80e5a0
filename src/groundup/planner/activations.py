"""What our own training step keeps of a batch from its way forward for its way back.

Counted from the operations in `nn`: fused attention keeps no scores, the loss no logits, and a
product keeps its input alone. Blocks are compiled on CUDA, as they are unless switched off.
"""

from typing import Literal, NamedTuple

from groundup.model.config import ModelConfig
from groundup.nn.limits import is_short_attention

DeviceKind = Literal["cpu", "cuda", "mps"]

_FLOAT32_BYTES = 4
_ID_BYTES = 8

# Inner values a token that plain layers keep, in parts of d_ff: the input of the activation, what
# its formula keeps besides, and its output. A compiler makes the second again.
_PLAIN_KEPT = {"silu": 3, "gelu": 4, "relu2": 3}
_PLAIN_KEPT_COMPILED = 2
# And on the way back the gradients of as many at once.
_INNER_GRADIENTS = {"swiglu": 2, "silu": 2, "gelu": 4, "relu2": 2}
# Scores, weights and their gradients on the way back of the formula, as measured at contexts from
# 256 to 512.
_FORMULA_SCORES = 3.75
# What a norm's way back holds in float32 where the rest is bfloat16, in vectors of the latter.
_WIDE_NORM_GRADIENTS = {"pre": 12, "post": 8, "none": 0}


class Execution(NamedTuple):
    """Where and in which precision a step computes; weights are float32 always."""

    device: DeviceKind
    precision: Literal["float32", "bfloat16"]

    @classmethod
    def of(cls, device: str, precision: str) -> "Execution":
        """From the settings of a run: cpu, mps, cuda or cuda:N, and what products are in."""
        kinds: dict[str, DeviceKind] = {"cuda": "cuda", "mps": "mps"}
        kind = kinds.get(device.partition(":")[0], "cpu")
        return cls(kind, "bfloat16" if precision == "bfloat16" else "float32")

    @property
    def value_bytes(self) -> int:
        return 2 if self.precision == "bfloat16" else _FLOAT32_BYTES


FLOAT32_ON_CPU = Execution("cpu", "float32")


def layer_activations(config: ModelConfig, execution: Execution) -> dict[str, int]:
    """Bytes that one block keeps of each token, by component."""
    value = execution.value_bytes
    is_fused = config.kernels == "fused"
    attention = _fused_attention if is_fused else _reference_attention
    feed_forward = _feed_forward_values(config, execution) * config.feed_forward_dim
    return {
        "residual": 2 * config.d_model * value,
        "norms": _norm_bytes(config, execution),
        **attention(config, execution),
        "feed_forward": feed_forward * value,
    }


def output_activations(config: ModelConfig, execution: Execution) -> int:
    """Bytes of each token that the last norm and the output layer keep: its input, its output and
    the gradient of that, which the loss makes on its way forward; and the ids and targets."""
    num_vectors = 3 if config.norm == "pre" else 2
    if config.norm == "pre" and _mixes_precisions(execution):
        num_vectors = 6
    return num_vectors * config.d_model * execution.value_bytes + 3 * _ID_BYTES


def kept_weight_copies(config: ModelConfig, execution: Execution) -> int:
    """Bytes of one block's weights that a step holds a second time: packed beside each other, or
    rounded to bfloat16."""
    d_model, d_key_value = config.d_model, config.key_value_heads * config.d_head
    packed = d_model * (d_model + 2 * d_key_value)
    single = d_model**2
    inner = d_model * config.feed_forward_dim
    if config.feed_forward == "swiglu":
        packed, single = packed + 2 * inner, single + inner
    else:
        single += 2 * inner
    if execution.precision == "bfloat16":
        return (packed + single) * execution.value_bytes
    return packed * _FLOAT32_BYTES if config.kernels == "fused" else 0


def backward_temporaries(config: ModelConfig, execution: Execution) -> int:
    """Bytes of each token that a block needs on its way back besides what it kept: the gradients
    of its output and of the inner values of its widest layer."""
    is_compiled_plain = execution.device == "cuda" and config.feed_forward != "swiglu"
    num_inner = 1 if is_compiled_plain else _INNER_GRADIENTS[config.feed_forward]
    values = config.d_model + num_inner * config.feed_forward_dim
    if _mixes_precisions(execution):
        values = max(values, _WIDE_NORM_GRADIENTS[config.norm] * config.d_model)
    return values * execution.value_bytes


def formula_attention_temporaries(config: ModelConfig, execution: Execution) -> int:
    """Bytes of each token for attention by the formula on its way back: scores of every head with
    every position, several times over."""
    if config.kernels == "fused":
        return 0
    scores = config.num_heads * config.context_length * execution.value_bytes
    return round(_FORMULA_SCORES * scores)


def _norm_bytes(config: ModelConfig, execution: Execution) -> int:
    """Two outputs and their scales; the formula keeps the values before the gain as well."""
    if config.norm == "none":
        return 0
    if _mixes_precisions(execution):
        # Norms compute in float32, and keep both what they got and what they made of it.
        return 4 * config.d_model * _FLOAT32_BYTES + 2 * _FLOAT32_BYTES
    num_vectors = 2 if config.kernels == "fused" else 4
    return num_vectors * config.d_model * execution.value_bytes + 2 * _FLOAT32_BYTES


def _fused_attention(config: ModelConfig, execution: Execution) -> dict[str, int]:
    """Packed projections, which the values are a view of; turned queries and keys; the mixed values
    and each head's log of its total weight."""
    d_model, d_key_value = config.d_model, config.key_value_heads * config.d_head
    projections = d_model + 2 * d_key_value
    turned = d_model + d_key_value if config.positions == "rope" else 0
    log_totals = config.num_heads * _FLOAT32_BYTES
    if config.key_value_heads != config.num_heads:
        # Keys and values are written out once for each query head, and the packed ones let go.
        projections, turned = 0, 3 * d_model
    if config.qk_norm:
        widened = 2 * _FLOAT32_BYTES // execution.value_bytes if _mixes_precisions(execution) else 1
        turned += widened * (d_model + d_key_value)
        log_totals += (config.num_heads + config.key_value_heads) * _FLOAT32_BYTES
    if _turns_again(config, execution):
        turned = 0
    # Where heads were taken apart, the mixed values are kept both apart and side by side.
    is_apart = _mixes_precisions(execution) and config.positions == "rope"
    mixed = d_model if _stays_packed(config) and not is_apart else 2 * d_model
    return {
        "query_key_value": projections * execution.value_bytes,
        "rotated": turned * execution.value_bytes,
        "attention_mixing": mixed * execution.value_bytes + log_totals,
    }


def _reference_attention(config: ModelConfig, execution: Execution) -> dict[str, int]:
    """The formula keeps scores, their exponentials and the softmax, each of a head for itself."""
    d_model, value = config.d_model, execution.value_bytes
    num_scores = config.num_heads * config.context_length
    qk_norm = 2 * (d_model + config.key_value_heads * config.d_head) if config.qk_norm else 0
    return {
        "query_key_value": (3 * d_model + qk_norm) * value,
        "attention_scores": 3 * num_scores * value + config.context_length,
        "attention_mixing": d_model * value,
    }


def _stays_packed(config: ModelConfig) -> bool:
    return not config.qk_norm and config.key_value_heads == config.num_heads


def _mixes_precisions(execution: Execution) -> bool:
    """On a CPU products alone are in bfloat16, and kernels of ours that fuse are for float32."""
    return execution == ("cpu", "bfloat16")


def _turns_again(config: ModelConfig, execution: Execution) -> bool:
    return (
        execution == ("cuda", "bfloat16")
        and _stays_packed(config)
        and is_short_attention(config.context_length, config.d_head)
    )


def _feed_forward_values(config: ModelConfig, execution: Execution) -> int:
    is_compiled = execution.device == "cuda"
    if config.feed_forward != "swiglu":
        return _PLAIN_KEPT_COMPILED if is_compiled else _PLAIN_KEPT[config.feed_forward]
    if config.kernels == "fused":
        return 4 if _mixes_precisions(execution) else 3
    return 3 if is_compiled else 5
