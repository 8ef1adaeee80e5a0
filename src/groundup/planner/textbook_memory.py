"""Training memory by the textbook: everything in float32, every intermediate kept, a·batch + b.

What our own step keeps is less (`activations`); this is the figure that other calculations of the
same kind arrive at.
"""

from dataclasses import dataclass

from groundup.model.config import ModelConfig
from groundup.planner.parameters import count_parameters

_FLOAT32_BYTES = 4


@dataclass(frozen=True)
class TextbookMemory:
    """Bytes of weights, gradients and AdamW's two averages, and of one sequence's activations."""

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
    the output projection, and the feed-forward layer's products, activation and (gated) their
    product; then the last norm, the logits, and the logits' softmax within the loss."""
    weights = _FLOAT32_BYTES * sum(count_parameters(config).values())
    values = _values_of_one_sequence(config)
    return TextbookMemory(
        weights=weights,
        gradients=weights,
        optimizer_state=2 * weights,
        activations_per_sequence={name: _FLOAT32_BYTES * count for name, count in values.items()},
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
