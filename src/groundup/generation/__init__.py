"""Text from a trained model: how ids are chosen, the engine that chooses them, the text of them."""

from groundup.generation.decoder import Decoder, ModelDecoder, choose_decoder
from groundup.generation.engine import Engine
from groundup.generation.language_model import LanguageModel
from groundup.generation.request import GenerationRequest, NewToken
from groundup.generation.sampling import (
    Greedy,
    MinP,
    RepetitionPenalty,
    Sampler,
    Temperature,
    TopK,
    TopP,
)
from groundup.generation.scoring import Score
from groundup.generation.text_stream import TextStream
from groundup.generation.writable_ids import WritableIds

__all__ = [
    "Decoder",
    "Engine",
    "GenerationRequest",
    "Greedy",
    "LanguageModel",
    "MinP",
    "ModelDecoder",
    "NewToken",
    "RepetitionPenalty",
    "Sampler",
    "Score",
    "Temperature",
    "TextStream",
    "TopK",
    "TopP",
    "WritableIds",
    "choose_decoder",
]
