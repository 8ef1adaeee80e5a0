"""`POST /api/tokenize`: a text's pre-tokens, tokens and merge steps, for the page."""

from __future__ import annotations

import json
from typing import Any

from groundup.serving.api_errors import ApiError
from groundup.serving.bodies import Body
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.inspection import PreToken, follow_merges
from groundup.tokenizer.reference import split_special_tokens

MAX_CHARACTERS = 20_000
# Each step shows about half of the pre-token's bytes as symbols, so the size of all steps grows
# with the square of its length.
MAX_SYMBOLS = 100_000


class TokenizeRequest(Body):
    text: str
    model: str | None = None


def describe_tokenization(tokenizer: Tokenizer, text: str) -> str:
    """The JSON of a text's way through pre-tokens and merges to its ids."""
    if len(text) > MAX_CHARACTERS:
        raise ApiError(
            400,
            f"the text has {len(text):,} characters but this view takes {MAX_CHARACTERS:,}: "
            f"shorten it, or use groundup tokenizer encode",
            param="text",
        )
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
    # Bytes as lists of numbers.
    return json.dumps({"pre_tokens": pre_tokens, **sizes}, default=list)
