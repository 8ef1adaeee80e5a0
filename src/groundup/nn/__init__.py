"""Transformer layers, one idea per file, with their formulas as docstrings; and the losses.

Names are imported lazily, so that `groundup.nn.limits` does not import torch. Import
`linear_cross_entropy` from its module, which has the same name.
"""

from typing import TYPE_CHECKING

from groundup.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from groundup.nn.attention import MultiHeadSelfAttention as MultiHeadSelfAttention
    from groundup.nn.block import TransformerBlock as TransformerBlock
    from groundup.nn.embedding import Embedding as Embedding
    from groundup.nn.feed_forward import FeedForward as FeedForward
    from groundup.nn.feed_forward import SwiGLU as SwiGLU
    from groundup.nn.functional import gelu as gelu
    from groundup.nn.functional import scaled_dot_product_attention as scaled_dot_product_attention
    from groundup.nn.functional import silu as silu
    from groundup.nn.functional import softmax as softmax
    from groundup.nn.functional import squared_relu as squared_relu
    from groundup.nn.kv_cache import KVCache as KVCache
    from groundup.nn.linear import Linear as Linear
    from groundup.nn.losses import cross_entropy as cross_entropy
    from groundup.nn.losses import z_loss as z_loss
    from groundup.nn.norm import RMSNorm as RMSNorm
    from groundup.nn.rope import RotaryEmbedding as RotaryEmbedding

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
