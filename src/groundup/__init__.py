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
    from groundup.tokenizer import Tokenizer, train_bpe

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "GroundupError",
    "MissingExtraError",
    "Tokenizer",
    "TokenizerError",
    "__version__",
    "train_bpe",
]

_HOME_OF = {
    "CheckpointError": "groundup.errors",
    "ConfigError": "groundup.errors",
    "DataError": "groundup.errors",
    "GroundupError": "groundup.errors",
    "MissingExtraError": "groundup.errors",
    "TokenizerError": "groundup.errors",
    "Tokenizer": "groundup.tokenizer",
    "train_bpe": "groundup.tokenizer",
}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'groundup' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
