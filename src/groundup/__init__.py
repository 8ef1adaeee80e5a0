"""groundup: from raw text to a trained, measured, served language model.

The public names are resolved on first use, so that `from groundup import Tokenizer` costs no
torch import and `import groundup` costs nothing at all.
"""

from typing import TYPE_CHECKING

from groundup.lazy_exports import lazy_exports

__version__ = "0.1.0"

if TYPE_CHECKING:
    from groundup.data import open_shards
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
    "open_shards",
    "train",
    "train_bpe",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "errors": "CheckpointError ConfigError DataError GroundupError MissingExtraError "
        "TokenizerError",
        "data": "open_shards",
        "generation": "LanguageModel",
        "model": "ModelConfig TransformerLM",
        "runs": "RunConfig",
        "tokenizer": "Tokenizer train_bpe",
        "training": "train",
    },
)
