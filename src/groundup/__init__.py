"""groundup: from raw text to a trained, measured, served language model.

Public names are imported on first use, so that `import groundup` is fast and importing Tokenizer
does not import torch.
"""

from typing import TYPE_CHECKING

from groundup.lazy_exports import lazy_exports

__version__ = "0.1.0"

if TYPE_CHECKING:
    from groundup.data import open_shards as open_shards
    from groundup.errors import CheckpointError as CheckpointError
    from groundup.errors import ConfigError as ConfigError
    from groundup.errors import DataError as DataError
    from groundup.errors import GroundupError as GroundupError
    from groundup.errors import MissingExtraError as MissingExtraError
    from groundup.errors import TokenizerError as TokenizerError
    from groundup.generation import LanguageModel as LanguageModel
    from groundup.model import ModelConfig as ModelConfig
    from groundup.model import TransformerLM as TransformerLM
    from groundup.runs import RunConfig as RunConfig
    from groundup.tokenizer import Tokenizer as Tokenizer
    from groundup.tokenizer import train_bpe as train_bpe
    from groundup.training import train as train

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
