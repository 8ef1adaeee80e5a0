"""The language model: its settings (no torch) and the Transformer they describe."""

from typing import TYPE_CHECKING

from groundup.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from groundup.model.config import PRESETS, ModelConfig, preset
    from groundup.model.transformer import TransformerLM

__all__ = ["PRESETS", "ModelConfig", "TransformerLM", "preset"]

__getattr__, __dir__ = lazy_exports(
    __name__, {"config": "PRESETS ModelConfig preset", "transformer": "TransformerLM"}
)
