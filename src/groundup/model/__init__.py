"""The language model: its settings (no torch) and the Transformer they describe."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from groundup.model.config import PRESETS, ModelConfig, preset
    from groundup.model.transformer import TransformerLM

__all__ = ["PRESETS", "ModelConfig", "TransformerLM", "preset"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'groundup.model' has no attribute {name!r}")
    home = "transformer" if name == "TransformerLM" else "config"
    return getattr(import_module(f"groundup.model.{home}"), name)
