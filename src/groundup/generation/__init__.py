"""Text from a trained model: how ids are sampled, the engine that samples them, the text of them.

Names are resolved on first use: the settings of generation cost no torch import.
"""

from typing import TYPE_CHECKING

from groundup.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from groundup.generation.engine import Engine as Engine
    from groundup.generation.language_model import LanguageModel as LanguageModel
    from groundup.generation.request import GenerationRequest as GenerationRequest
    from groundup.generation.request import GenerationSettings as GenerationSettings
    from groundup.generation.request import Sampler as Sampler

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
