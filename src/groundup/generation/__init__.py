"""Text generation: sampling, the batched engine, and the language model that continues text.

Names are imported lazily, so that the settings of generation do not import torch.
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
