"""The layers of a Transformer, one idea a file, each docstring its formula; and the losses.

Names are resolved on first use, so that `groundup.nn.limits` costs no torch import.
`linear_cross_entropy` has its name from its module: import it from there.
"""

from typing import TYPE_CHECKING

from groundup.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from groundup.nn.attention import MultiHeadSelfAttention
    from groundup.nn.block import TransformerBlock
    from groundup.nn.embedding import Embedding
    from groundup.nn.feed_forward import FeedForward, SwiGLU
    from groundup.nn.functional import (
        gelu,
        scaled_dot_product_attention,
        silu,
        softmax,
        squared_relu,
    )
    from groundup.nn.kv_cache import KVCache
    from groundup.nn.linear import Linear
    from groundup.nn.losses import cross_entropy, z_loss
    from groundup.nn.norm import RMSNorm
    from groundup.nn.rope import RotaryEmbedding

__all__ = [
    "Embedding",
    "FeedForward",
    "KVCache",
    "Linear",
    "MultiHeadSelfAttention",
    "RMSNorm",
    "RotaryEmbedding",
    "SwiGLU",
    "TransformerBlock",
    "cross_entropy",
    "gelu",
    "scaled_dot_product_attention",
    "silu",
    "softmax",
    "squared_relu",
    "z_loss",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "attention": "MultiHeadSelfAttention",
        "block": "TransformerBlock",
        "embedding": "Embedding",
        "feed_forward": "FeedForward SwiGLU",
        "functional": "gelu scaled_dot_product_attention silu softmax squared_relu",
        "kv_cache": "KVCache",
        "linear": "Linear",
        "losses": "cross_entropy z_loss",
        "norm": "RMSNorm",
        "rope": "RotaryEmbedding",
    },
)
