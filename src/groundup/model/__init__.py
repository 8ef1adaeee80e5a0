"""The language model: its settings (no torch) and the Transformer built from them."""

from typing import TYPE_CHECKING

from groundup.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from groundup.model.config import PRESETS as PRESETS
    from groundup.model.config import ModelConfig as ModelConfig
    from groundup.model.config import preset as preset
    from groundup.model.transformer import TransformerLM as TransformerLM
    from groundup.nn.losses import cross_entropy as cross_entropy

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
