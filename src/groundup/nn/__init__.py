"""The layers of a Transformer, one idea a file, each docstring its formula."""

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
from groundup.nn.kv_cache import KVCache, LayerCache
from groundup.nn.linear import Linear
from groundup.nn.norm import RMSNorm
from groundup.nn.rope import RotaryEmbedding

__all__ = [
    "Embedding",
    "FeedForward",
    "KVCache",
    "LayerCache",
    "Linear",
    "MultiHeadSelfAttention",
    "RMSNorm",
    "RotaryEmbedding",
    "SwiGLU",
    "TransformerBlock",
    "gelu",
    "scaled_dot_product_attention",
    "silu",
    "softmax",
    "squared_relu",
]
