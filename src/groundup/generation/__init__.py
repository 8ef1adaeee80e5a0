"""Text from a trained model: how ids are sampled, the engine that samples them, the text of them.

Names are resolved on first use: the settings of generation cost no torch import.
"""

from typing import TYPE_CHECKING

from groundup.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from groundup.generation.engine import Engine
    from groundup.generation.language_model import LanguageModel
    from groundup.generation.request import GenerationRequest, GenerationSettings, Sampler

__all__ = ["Engine", "GenerationRequest", "GenerationSettings", "LanguageModel", "Sampler"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "engine": "Engine",
        "language_model": "LanguageModel",
        "request": "GenerationRequest GenerationSettings Sampler",
    },
)
