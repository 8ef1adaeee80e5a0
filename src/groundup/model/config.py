"""Model settings and presets. Does not import torch."""

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from groundup.config import Settings
from groundup.errors import ConfigError, did_you_mean
from groundup.nn.limits import UNGATED, AttentionKind, FeedForwardKind, NormPlacement

_ROUND_TO = 64
# Limits allow models of up to 10^17 parameters, which 64 bits can still count.
_MAX_WIDTH = 10**6


class ModelConfig(Settings):
    """Architecture of a Transformer language model."""

    vocab_size: int = Field(default=10_000, ge=1, le=10**8)
    """Vocabulary size of the model, at least that of the tokenizer."""

    context_length: int = Field(default=256, ge=1, le=2**24)
    """Maximum sequence length in tokens."""

    d_model: int = Field(default=512, ge=1, le=_MAX_WIDTH)
    """Width of the residual stream."""

    num_layers: int = Field(default=4, ge=0, le=10_000)
    """Number of Transformer blocks."""

    num_heads: int = Field(default=16, ge=1, le=_MAX_WIDTH)
    """Attention heads per block, each of size d_model / num_heads."""

    num_kv_heads: int | None = Field(default=None, ge=1, le=_MAX_WIDTH)
    """Key/value heads for grouped-query attention. Default: num_heads."""

    d_ff: int | None = Field(default=None, ge=1, le=10 * _MAX_WIDTH)
    """Inner width of the feed-forward layer. Default: 8/3 of d_model, rounded up to a multiple of
64; 1.5 times that for ungated layers, so that all kinds have the same number of parameters."""

    rope_theta: float = Field(default=10_000.0, gt=0, le=1e15)
    """Base of the RoPE frequencies."""

    norm: NormPlacement = "pre"
    """Placement of RMSNorm: pre-norm, post-norm or none."""

    norm_eps: float = Field(default=1e-5, gt=0, le=1e6)
    """Epsilon of RMSNorm."""

    positions: Literal["rope", "none"] = "rope"
    """Positional encoding: RoPE, or none (NoPE, causal mask only)."""

    attention: AttentionKind = "full"
    """Attention layer; full is causal softmax attention."""

    feed_forward: FeedForwardKind = "swiglu"
    """Feed-forward layer: SwiGLU, or two matrices with an activation."""

    tie_embeddings: bool = False
    """Share the embedding matrix with the output layer."""

    embedding_scale: float | None = Field(default=None, gt=0, le=1e6)
    """Factor on token embeddings. Default: 1, or √((vocab_size + d_model) / 2) for tied embeddings
with standard initialization. A run keeps the factor it started with."""

    qk_norm: bool = False
    """RMSNorm on queries and keys before attention (QK-norm)."""

    initialization: Literal["standard", "gpt2"] = "standard"
    """Initialization. standard: normal with std √(2 / (in + out)) for linear layers and 1 for
embeddings, truncated at three sigma. gpt2: std 0.02, and 0.02 / √(2 · num_layers) for the output
projections of attention and feed-forward."""

    zero_outputs: bool = False
    """Initialize the output projections of attention and feed-forward to zero, so that every block
starts as the identity."""

    gated_attention: bool = False
    """Scale each attention head's output by a learned gate between 0 and 2 (gated attention)."""

    value_embeddings: Literal["none", "projection"] = "none"
    """Value embeddings: each block adds a projection of the token embedding, times a learned
factor, to its attention values."""

    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the embeddings and on the output of attention and feed-forward, during training.
    It helps if training for more than about four epochs overfits."""

    document_separator: Annotated[int, Field(ge=0, lt=10**8)] | Literal["auto"] | None = None
    """Document masking: tokens attend only to their own document, which begins with this id. Lowers
    the loss for short documents. auto: the id that ends documents in the run's shards."""

    @property
    def d_head(self) -> int:
        return self.d_model // self.num_heads

    @property
    def key_value_heads(self) -> int:
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def input_scale(self) -> float:
        """embedding_scale or its default: 1 / std of the initial table if embeddings are tied."""
        if self.embedding_scale is not None:
            return self.embedding_scale
        begins_small = self.tie_embeddings and self.initialization == "standard"
        return math.sqrt((self.vocab_size + self.d_model) / 2) if begins_small else 1.0

    @property
    def feed_forward_dim(self) -> int:
        """d_ff or its default."""
        if self.d_ff is not None:
            return self.d_ff
        gated = -(-8 * self.d_model // (3 * _ROUND_TO)) * _ROUND_TO
        return gated * 3 // 2 if self.feed_forward in UNGATED else gated

    @model_validator(mode="after")
    def _check_shape(self) -> "ModelConfig":
        if self.d_model % self.num_heads:
            raise ValueError(
                f"d_model {self.d_model} cannot be split into num_heads {self.num_heads} equal "
                f"parts: choose a divisor of d_model"
            )
        if self.num_heads % self.key_value_heads:
            raise ValueError(
                f"num_kv_heads {self.num_kv_heads} cannot serve num_heads {self.num_heads} "
                f"evenly: choose a divisor of num_heads"
            )
        if self.positions == "rope" and self.d_head % 2:
            raise ValueError(
                f"RoPE needs an even head size, but d_model {self.d_model} / num_heads "
                f"{self.num_heads} is {self.d_head}: change one of them, or set positions to none"
            )
        separator = self.document_separator
        if isinstance(separator, int) and separator >= self.vocab_size:
            raise ValueError(
                f"document_separator {separator} is outside the vocabulary of {self.vocab_size}: "
                f"give a smaller id, or auto"
            )
        return self


def _gpt2(d_model: int, num_layers: int, num_heads: int) -> ModelConfig:
    return ModelConfig(
        vocab_size=50_257,
        context_length=1_024,
        d_model=d_model,
        num_layers=num_layers,
        num_heads=num_heads,
        d_ff=4 * d_model,
    )


PRESETS = {
    "tinystories": ModelConfig(
        vocab_size=10_000, context_length=256, d_model=512, num_layers=4, num_heads=16, d_ff=1_344
    ),
    "gpt2-small": _gpt2(d_model=768, num_layers=12, num_heads=12),
    "gpt2-medium": _gpt2(d_model=1_024, num_layers=24, num_heads=16),
    "gpt2-large": _gpt2(d_model=1_280, num_layers=36, num_heads=20),
    "gpt2-xl": _gpt2(d_model=1_600, num_layers=48, num_heads=25),
    "quickstart": ModelConfig(
        vocab_size=4_096,
        context_length=256,
        d_model=96,
        num_layers=4,
        num_heads=3,
        initialization="gpt2",
        zero_outputs=True,
    ),
}


def preset(name: str) -> ModelConfig:
    """Return the preset called `name`."""
    if name not in PRESETS:
        raise ConfigError(f"unknown preset {name!r}: {did_you_mean(name, PRESETS)}")
    return PRESETS[name]
