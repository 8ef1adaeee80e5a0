"""The pages' own endpoints: how a text is tokenized (`POST /api/tokenize`), a prompt's path through
the model (`/api/inside`), and the rating of an answer (`/api/rating`).
"""

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from groundup.errors import ConfigError, DataError
from groundup.files import append_json_line
from groundup.generation import LanguageModel
from groundup.generation.inspection import inspect_prompt
from groundup.serving.api_errors import ApiError
from groundup.serving.protocol import Body, SamplingBody
from groundup.tokenizer.chat_template import check_messages
from groundup.tokenizer.inspection import PreToken, follow_merges
from groundup.tokenizer.reference import split_special_tokens

MAX_CHARACTERS = 20_000
# Each merge step lists about half of the pre-token's bytes as symbols, so the size of all steps
# grows with the square of its length.
MAX_SYMBOLS = 100_000


class TokenizeRequest(Body):
    text: str = Field(max_length=MAX_CHARACTERS)
    model: str | None = None


def describe_tokenization(language_model: LanguageModel, body: TokenizeRequest) -> str:
    """Return JSON of a text's pre-tokens, their merges and ids."""
    tokenizer, text = language_model.tokenizer, body.text
    definition = tokenizer.definition
    follow = follow_merges(definition)
    pre_tokens: list[dict[str, Any]] = []
    start, num_left = 0, MAX_SYMBOLS
    for piece, is_special in split_special_tokens(text, definition.special_tokens):
        for part in [piece] if is_special else definition.pattern.split(piece):
            num_symbols = 0 if is_special else len(part.encode()) ** 2 // 2
            if is_followed := num_symbols <= num_left:
                num_left -= num_symbols
                found = follow(part, is_special)
            else:
                ids = tuple(tokenizer.encode(part))
                found = PreToken(part, (), (), tuple(tokenizer.vocab[id] for id in ids), ids)
            tokens = [
                {"id": id, "text": tokenizer.decode([id]), "bytes": token}
                for id, token in zip(found.ids, found.tokens, strict=True)
            ]
            fields = {"text": part, "start": start, "end": start + len(part), "tokens": tokens}
            fields |= {"merges": list(map(vars, found.steps)), "is_special": is_special}
            fields |= {"is_whole_word": found.is_whole_word, "is_too_long": not is_followed}
            pre_tokens.append(fields)
            start += len(part)
    num_tokens = sum(len(one["tokens"]) for one in pre_tokens)
    sizes = {"num_tokens": num_tokens, "num_bytes": len(text.encode()), "num_characters": len(text)}
    # Bytes become lists of numbers.
    return json.dumps({"pre_tokens": pre_tokens, **sizes}, default=list)


class InsideRequest(SamplingBody):
    prompt: str = Field(default="", max_length=20_000)


def describe_inside(language_model: LanguageModel, body: InsideRequest) -> str:
    """Return the JSON of `inspect_prompt`."""
    try:
        sampler = body.sampler(language_model.sampler)
        seed = (body.seed or 0) % 2**64
        return json.dumps(inspect_prompt(language_model, body.prompt, sampler, seed))
    except ConfigError as error:
        raise ApiError(400, str(error)) from error


class RatingRequest(Body):
    """A conversation up to the rated answer."""

    messages: list[Any]
    rating: Literal["up", "down"]
    model: str | None = None


def save_rating(folder: Path, body: RatingRequest) -> None:
    """Append it to chats_up.jsonl or chats_down.jsonl in the run folder, for `groundup tune`."""
    try:
        messages = check_messages(body.messages, "the request")
        append_json_line(folder / f"chats_{body.rating}.jsonl", {"messages": messages})
    except DataError as error:
        raise ApiError(400, str(error), param="messages") from error
    except OSError as error:
        raise ApiError(503, f"the rating cannot be saved: {error.strerror}") from error
