"""`POST /api/inside`: a prompt on its way through the model, for the page."""

from __future__ import annotations

import base64
import json
from typing import Any

from pydantic import Field

from groundup.errors import ConfigError
from groundup.generation import LanguageModel
from groundup.generation.inspection import Likely, inspect_prompt
from groundup.serving.api_errors import ApiError
from groundup.serving.protocol import SamplingBody


class InsideRequest(SamplingBody):
    prompt: str = Field(default="", max_length=20_000)


def describe_inside(language_model: LanguageModel, body: InsideRequest) -> str:
    """The JSON of it. Attention is the base64 of a byte a weight, 255 for 1, in the order layers,
    heads, queries, keys."""
    vocab = language_model.tokenizer.vocab
    try:
        num_tokens = len(language_model.encode_prompt(body.prompt))
        seed = (body.seed or 0) % 2**64
        sampler = body.sampler(language_model.sampler)
        found = inspect_prompt(language_model, body.prompt, sampler, seed)
    except ConfigError as error:
        raise ApiError(400, str(error)) from error

    def spell(ids: list[Any]) -> list[Any]:
        """A token as its id and its bytes."""
        return [spell(id) if isinstance(id, list) else [id, list(vocab[id])] for id in ids]

    def list_likely(likely: Likely) -> dict[str, Any]:
        values = likely.values.double().round(decimals=4)
        return {"tokens": spell(likely.ids.tolist()), "values": values.tolist()}

    sampling = vars(found.sampling) | {"candidates": spell(list(found.sampling.candidates))}
    attention = (found.attention * 255).round().byte().numpy().tobytes()
    content = {
        "tokens": spell(list(found.ids)),
        "is_cut": num_tokens > len(found.ids),
        "num_layers": found.attention.shape[0],
        "num_heads": found.attention.shape[1],
        "neighbours": list_likely(found.neighbours),
        "attention": base64.b64encode(attention).decode(),
        "predicted": list_likely(found.predicted),
        "sampling": sampling,
    }
    return json.dumps(content)
