"""What a training step keeps of a batch from its forward pass for its backward pass.

Counted from the operations in `nn`: fused attention keeps no scores, the loss no logits, and a
matmul keeps its input alone. Blocks are compiled on CUDA, as they are unless switched off. The
textbook's count, at the end, keeps every intermediate.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from groundup.model.config import ModelConfig
from groundup.nn.limits import is_packed_attention, is_short_attention
from groundup.planner.parameters import FLOAT32_BYTES, count_parameters

DeviceKind = Literal["cpu", "cuda", "mps"]

_ID_BYTES = 8

# Inner values a token that plain layers keep, in parts of d_ff: the input of the activation, what
# its formula keeps besides, and its output. A compiler makes the second again.
_PLAIN_KEPT = {"silu": 3, "gelu": 4, "relu2": 3}
_PLAIN_KEPT_COMPILED = 2
# And in the backward pass the gradients of as many at once.
_INNER_GRADIENTS = {"swiglu": 2, "silu": 2, "gelu": 4, "relu2": 2}
# What a norm's backward pass holds in float32 where the rest is bfloat16, in vectors of the latter.
_WIDE_NORM_GRADIENTS = {"pre": 12, "post": 8, "none": 0}


class Execution(NamedTuple):
    """Where and in which precision a step computes; weights are float32 always."""

    device: DeviceKind
    precision: Literal["float32", "bfloat16"]

    @classmethod
    def of(cls, device: str, precision: str) -> "Execution":
        """From the settings of a run: cpu, mps, cuda or cuda:N, and the precision of matmuls."""
        kinds: dict[str, DeviceKind] = {"cuda": "cuda", "mps": "mps"}
        kind = kinds.get(device.partition(":")[0], "cpu")
        return cls(kind, "bfloat16" if precision in ("bfloat16", "float8") else "float32")

    @property
    def value_bytes(self) -> int:
        return 2 if self.precision == "bfloat16" else FLOAT32_BYTES


FLOAT32_ON_CPU = Execution("cpu", "float32")


def layer_activations(
    config: ModelConfig, execution: Execution, *, is_masked: bool = False
) -> dict[str, int]:
    """Bytes that one block keeps of each token, by component.

    config, execution: of the run.
    is_masked: whether rows hold several sequences, which attention keeps apart.
    """
    value = execution.value_bytes
    feed_forward = _feed_forward_values(config, execution) * config.feed_forward_dim
    return {
        "residual": 2 * config.d_model * value,
        "norms": _norm_bytes(config, execution),
        **_fused_attention(config, execution, is_masked=is_masked),
        "feed_forward": feed_forward * value,
        # The mixed values once more, behind their gates, and the gates on their way there.
        **(
            {"head_gates": (config.d_model + 2 * config.num_heads) * value}
            if config.head_gates
            else {}
        ),
        # What the mix was made of, besides the embeddings.
        # What was kept of both sums, a byte a value.
        **({"dropout": 2 * config.d_model} if config.dropout else {}),
    }


def output_activations(config: ModelConfig, execution: Execution) -> int:
    """Bytes of each token that are kept outside of blocks: input and output of the last norm and
    the gradient of that, which the loss makes in the forward pass; what blocks add to their values;
    and the ids and targets."""
    num_vectors = 3 if config.norm == "pre" else 2
    if config.norm == "pre" and _mixes_precisions(execution):
        num_vectors = 6
    values = num_vectors * config.d_model
    if config.extra_values != "none":
        values += config.key_value_heads * config.d_head
    if config.extra_values == "projection":
        values += config.d_model
    return values * execution.value_bytes + 3 * _ID_BYTES


def kept_weight_copies(
    config: ModelConfig, execution: Execution, *, is_adapted: bool = False
) -> int:
    """Bytes of one block's weights that a step holds a second time: packed beside each other,
    rounded to bfloat16, or added to adapters."""
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
    if is_adapted:
        return (packed + single) * FLOAT32_BYTES
    return packed * FLOAT32_BYTES


def backward_temporaries(config: ModelConfig, execution: Execution) -> int:
    """Bytes of each token that a block's backward pass needs besides what it kept: the gradients
    of its output and of the inner values of its widest layer."""
    is_compiled_plain = execution.device == "cuda" and config.feed_forward != "swiglu"
    num_inner = 1 if is_compiled_plain else _INNER_GRADIENTS[config.feed_forward]
    values = config.d_model + num_inner * config.feed_forward_dim
    if _mixes_precisions(execution):
        values = max(values, _WIDE_NORM_GRADIENTS[config.norm] * config.d_model)
    return values * execution.value_bytes


def _norm_bytes(config: ModelConfig, execution: Execution) -> int:
    """Two outputs and their scales."""
    if config.norm == "none":
        return 0
    if _mixes_precisions(execution):
        # Norms compute in float32, and keep both what they got and what they made of it.
        return 4 * config.d_model * FLOAT32_BYTES + 2 * FLOAT32_BYTES
    return 2 * config.d_model * execution.value_bytes + 2 * FLOAT32_BYTES


def _fused_attention(
    config: ModelConfig, execution: Execution, *, is_masked: bool
) -> dict[str, int]:
    """Packed projections, which the values are a view of; rotated queries and keys where kernels do
    not make them anew; the mixed values and each head's logsumexp."""
    d_model, d_key_value = config.d_model, config.key_value_heads * config.d_head
    is_packed = _stays_packed(config, execution)
    is_packed &= not is_masked or execution == FLOAT32_ON_CPU
    has_rope = config.positions == "rope"
    projections = d_model + 2 * d_key_value
    rotated = d_model + d_key_value if has_rope else 0
    if is_packed and execution == ("cuda", "bfloat16"):
        rotated = _num_prepared(config) * d_model
    elif is_packed and execution == FLOAT32_ON_CPU:
        rotated = 0
    logsumexps = config.num_heads * FLOAT32_BYTES
    if config.key_value_heads != config.num_heads:
        # Keys and values are written out once for each query head, and the packed ones let go.
        projections, rotated = 0, 3 * d_model
    if config.qk_norm and not is_packed:
        widened = 2 * FLOAT32_BYTES // execution.value_bytes if _mixes_precisions(execution) else 1
        rotated += widened * (d_model + d_key_value)
        logsumexps += (config.num_heads + config.key_value_heads) * FLOAT32_BYTES
        if projections and config.num_layers:
            # Where values are a sum of their own, and not a view of the projections, these go.
            num_sums = config.num_layers if config.extra_values != "none" else 0
            projections -= num_sums * (d_model + d_key_value) // config.num_layers
    # Where heads were taken apart, the mixed values are kept both apart and side by side.
    is_apart = _mixes_precisions(execution) and has_rope
    mixed = d_model if is_packed and not is_apart else 2 * d_model
    # The mask as numbers.
    has_mask = is_masked and not is_packed
    mask = config.context_length * execution.value_bytes if has_mask else 0
    return {
        "query_key_value": projections * execution.value_bytes,
        "rotated": rotated * execution.value_bytes,
        "attention_mixing": mixed * execution.value_bytes + logsumexps + mask,
    }


def _stays_packed(config: ModelConfig, execution: Execution) -> bool:
    """Whether attention works on packed projections, as in `nn.attention`."""
    if config.qk_norm and execution not in (("cuda", "bfloat16"), FLOAT32_ON_CPU):
        return False
    if execution.device == "cuda" and not is_packed_attention(config.context_length, config.d_head):
        return False
    return config.key_value_heads == config.num_heads


def _mixes_precisions(execution: Execution) -> bool:
    """On a CPU matmuls alone are in bfloat16, and kernels of ours that fuse are for float32."""
    return execution == ("cpu", "bfloat16")


def _num_prepared(config: ModelConfig) -> int:
    """How many of queries, keys and values the CUDA kernels for packed projections keep besides
    those that the projections made."""
    is_short = is_short_attention(config.context_length, config.d_head)
    has_extra = config.extra_values == "projection"
    is_plain = not config.qk_norm and not has_extra
    if is_plain and (is_short or config.positions != "rope"):
        return 0
    return 3 if is_short or has_extra else 2


def _feed_forward_values(config: ModelConfig, execution: Execution) -> int:
    is_compiled = execution.device == "cuda"
    if config.feed_forward != "swiglu":
        return _PLAIN_KEPT_COMPILED if is_compiled else _PLAIN_KEPT[config.feed_forward]
    return 4 if _mixes_precisions(execution) else 3


@dataclass(frozen=True)
class TextbookMemory:
    """Training memory by the textbook: float32, every intermediate kept, a·batch + b. What our own
    step keeps is less; this is the result that other calculations of the same kind arrive at.

    Bytes of weights, gradients and AdamW's two averages, and of one sequence's activations."""

    weights: int
    gradients: int
    optimizer_state: int
    activations_per_sequence: dict[str, int]

    @property
    def fixed_bytes(self) -> int:
        """b, whatever the batch."""
        return self.weights + self.gradients + self.optimizer_state

    @property
    def bytes_per_sequence(self) -> int:
        """a, for each sequence of a batch."""
        return sum(self.activations_per_sequence.values())

    def bytes_at(self, batch_size: int) -> int:
        return self.bytes_per_sequence * batch_size + self.fixed_bytes

    def largest_batch(self, memory_bytes: int) -> int:
        """The most sequences that fit; 0 where not even one does."""
        return max(0, (memory_bytes - self.fixed_bytes) // self.bytes_per_sequence)

    def formula(self) -> str:
        return f"{self.bytes_per_sequence:,} x batch + {self.fixed_bytes:,} bytes"


def textbook_memory(config: ModelConfig) -> TextbookMemory:
    """Of each block: two norms, queries, keys and values, scores, their softmax, the mixed values,
    the output projection, and the feed-forward layer's matmuls, activation and (gated) their
    product; then the last norm, the logits, and the logits' softmax within the loss."""
    weights = FLOAT32_BYTES * sum(count_parameters(config).values())
    values = _values_of_one_sequence(config)
    return TextbookMemory(
        weights=weights,
        gradients=weights,
        optimizer_state=2 * weights,
        activations_per_sequence={name: FLOAT32_BYTES * count for name, count in values.items()},
    )


def _values_of_one_sequence(config: ModelConfig) -> dict[str, int]:
    tokens, d_model, num_layers = config.context_length, config.d_model, config.num_layers
    d_key_value = config.key_value_heads * config.d_head
    norms_per_block = 0 if config.norm == "none" else 2
    num_inner = 4 if config.feed_forward == "swiglu" else 2
    scores = num_layers * config.num_heads * tokens**2
    return {
        "norms": norms_per_block * num_layers * tokens * d_model,
        "query_key_value": num_layers * tokens * (d_model + 2 * d_key_value),
        "attention_scores": scores,
        "attention_softmax": scores,
        "attention_mixing": num_layers * tokens * d_model,
        "attention_output": num_layers * tokens * d_model,
        "feed_forward_inner": num_layers * tokens * num_inner * config.feed_forward_dim,
        "feed_forward_output": num_layers * tokens * d_model,
        "final_norm": tokens * d_model if config.norm == "pre" else 0,
        "logits": tokens * config.vocab_size,
        "cross_entropy": tokens * config.vocab_size,
    }
