"""groundup: from raw text to a trained, measured, served language model.

The public names are resolved on first use, so that `from groundup import Tokenizer` costs no
torch import and `import groundup` costs nothing at all.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from groundup.errors import (
        CheckpointError,
        ConfigError,
        DataError,
        GroundupError,
        MissingExtraError,
        TokenizerError,
    )
    from groundup.generation import LanguageModel
    from groundup.model import ModelConfig, TransformerLM
    from groundup.runs import RunConfig
    from groundup.tokenizer import Tokenizer, train_bpe
    from groundup.training import train

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "GroundupError",
    "LanguageModel",
    "MissingExtraError",
    "ModelConfig",
    "RunConfig",
    "Tokenizer",
    "TokenizerError",
    "TransformerLM",
    "__version__",
    "train",
    "train_bpe",
]

_ROOMS = {
    "generation": ("LanguageModel",),
    "model": ("ModelConfig", "TransformerLM"),
    "runs": ("RunConfig",),
    "tokenizer": ("Tokenizer", "train_bpe"),
    "training": ("train",),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'groundup' has no attribute {name!r}")
    value = getattr(import_module(f"groundup.{_ROOM_OF.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
