"""Text from a trained model: choices of the next id, the loop that makes them, the text around."""

from groundup.generation.engine import generate_ids
from groundup.generation.language_model import LanguageModel
from groundup.generation.sampling import Greedy, Sampler, Temperature, TopK, TopP

__all__ = [
    "Greedy",
    "LanguageModel",
    "Sampler",
    "Temperature",
    "TopK",
    "TopP",
    "generate_ids",
]
