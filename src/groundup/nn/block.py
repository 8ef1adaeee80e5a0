"""One Transformer block."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from groundup.nn.attention import MultiHeadSelfAttention
from groundup.nn.dropout import Dropout
from groundup.nn.feed_forward import FeedForward
from groundup.nn.kv_cache import LayerCache
from groundup.nn.limits import ATTENTIONS, FEED_FORWARDS, NormPlacement
from groundup.nn.norm import RMSNorm


class TransformerBlock(nn.Module):
    """Attention, then feed-forward, each with a residual connection:

    pre:   z = x + attention(norm(x));   y = z + feed_forward(norm(z))
    post:  z = norm(x + attention(x));   y = norm(z + feed_forward(z))
    none:  z = x + attention(x);         y = z + feed_forward(z)

    attention, feed_forward: names of layer classes, as in the settings.
    dropout: applied to the outputs of attention and feed-forward, during training only.
    The other arguments are those of `MultiHeadSelfAttention`.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        max_seq_len: int,
        theta: float | None,
        num_kv_heads: int | None = None,
        norm: NormPlacement = "pre",
        attention: str = "full",
        feed_forward: str = "swiglu",
        qk_norm: bool = False,
        norm_eps: float = 1e-5,
        gated_attention: bool = False,
        value_embeddings: bool = False,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        kwargs: dict[str, Any] = {"device": device, "dtype": dtype}
        self.norm = norm
        self.dropout = Dropout(dropout)
        if norm != "none":
            self.attention_norm = RMSNorm(d_model, norm_eps, **kwargs)
            self.feed_forward_norm = RMSNorm(d_model, norm_eps, **kwargs)
        self.attention: MultiHeadSelfAttention = ATTENTIONS[attention]()(
            d_model,
            num_heads,
            max_seq_len=max_seq_len,
            theta=theta,
            num_kv_heads=num_kv_heads,
            qk_norm=qk_norm,
            norm_eps=norm_eps,
            gated_attention=gated_attention,
            value_embeddings=value_embeddings,
            **kwargs,
        )
        self.feed_forward: FeedForward = FEED_FORWARDS[feed_forward]()(d_model, d_ff, **kwargs)

    def forward(
        self,
        x: Float[Tensor, "... seq d_model"],
        token_positions: Int[Tensor, "... seq"] | None = None,
        cache: LayerCache | None = None,
        document_starts: Int[Tensor, "... seq"] | None = None,
        value_embedding: Float[Tensor, "... seq d_key_value"] | None = None,
    ) -> Float[Tensor, "... seq d_model"]:
        """Arguments are those of `MultiHeadSelfAttention`."""
        normed = self.attention_norm(x) if self.norm == "pre" else x
        attended = self.dropout(
            self.attention(normed, token_positions, cache, document_starts, value_embedding)
        )
        if self.norm == "pre":
            x, normed = self.feed_forward_norm.of_sum(x, attended)
        else:
            x = x + attended
            normed = x = self.attention_norm(x) if self.norm == "post" else x
        y: Tensor = x + self.dropout(self.feed_forward(normed))
        return self.feed_forward_norm(y) if self.norm == "post" else y
