"""Text from a trained model: how ids are sampled, the engine that samples them, the text of them.

Names are resolved on first use: the settings of generation cost no torch import.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from groundup.generation.engine import Engine
    from groundup.generation.language_model import LanguageModel
    from groundup.generation.request import GenerationRequest, GenerationSettings, NewToken
    from groundup.generation.sampling import Greedy, Sampler
    from groundup.generation.text_stream import TextStream

_MODULE_OF = {
    "Engine": "engine",
    "GenerationRequest": "request",
    "GenerationSettings": "request",
    "Greedy": "sampling",
    "LanguageModel": "language_model",
    "NewToken": "request",
    "Sampler": "sampling",
    "TextStream": "text_stream",
}

__all__ = [
    "Engine",
    "GenerationRequest",
    "GenerationSettings",
    "Greedy",
    "LanguageModel",
    "NewToken",
    "Sampler",
    "TextStream",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'groundup.generation' has no attribute {name!r}")
    return getattr(import_module(f"groundup.generation.{_MODULE_OF[name]}"), name)
