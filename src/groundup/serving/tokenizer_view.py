"""`POST /api/tokenize`: a text's pre-tokens, tokens and merge steps, for the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from groundup.serving.api_errors import ApiError
from groundup.serving.bodies import Body
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.inspection import PreToken, follow_merges
from groundup.tokenizer.reference import split_special_tokens

MAX_CHARACTERS = 20_000
# Each step shows about half of the pre-token's bytes as symbols, so the size of all steps grows
# with the square of its length.
MAX_PRE_TOKEN_BYTES = 128
MAX_SYMBOLS = 100_000


class TokenizeRequest(Body):
    text: str
    model: str | None = None


def describe_tokenization(tokenizer: Tokenizer, text: str) -> dict[str, Any]:
    """Follow a text through pre-tokens and merges to its ids."""
    if len(text) > MAX_CHARACTERS:
        raise ApiError(
            400,
            f"the text has {len(text):,} characters but this view takes {MAX_CHARACTERS:,}: "
            f"shorten it, or use groundup tokenizer encode",
            param="text",
        )
    pre_tokens: list[dict[str, Any]] = []
    start = 0
    for pre_token, is_too_long in _explain_within_limits(tokenizer, text):
        tokens = [
            {"id": id, "text": tokenizer.decode([id]), "bytes": list(token)}
            for id, token in zip(pre_token.ids, pre_token.tokens, strict=True)
        ]
        merges = [
            {
                "left": list(step.left),
                "right": list(step.right),
                "rank": step.rank,
                "symbols": list(map(list, step.symbols)),
            }
            for step in pre_token.steps
        ]
        end = start + len(pre_token.text)
        pre_tokens.append(
            {
                "text": pre_token.text,
                "start": start,
                "end": end,
                "tokens": tokens,
                "merges": merges,
                "is_special": pre_token.is_special,
                "is_whole_word": pre_token.is_whole_word,
                "is_too_long": is_too_long,
            }
        )
        start = end
    num_ids = sum(len(one["tokens"]) for one in pre_tokens)
    sizes = {"num_ids": num_ids, "num_bytes": len(text.encode()), "num_characters": len(text)}
    return {"pre_tokens": pre_tokens, **sizes}


def _explain_within_limits(tokenizer: Tokenizer, text: str) -> Iterator[tuple[PreToken, bool]]:
    """The pre-tokens in order, each with whether it is too long for its steps to be followed."""
    definition = tokenizer.definition
    follow = follow_merges(definition)
    num_left = MAX_SYMBOLS
    for piece, is_special in split_special_tokens(text, definition.special_tokens):
        for part in [piece] if is_special else definition.pattern.split(piece):
            num_bytes = len(part.encode())
            num_symbols = 0 if is_special else num_bytes**2 // 2
            if is_special or (num_bytes <= MAX_PRE_TOKEN_BYTES and num_symbols <= num_left):
                num_left -= num_symbols
                yield follow(part, is_special), False
                continue
            ids = tuple(tokenizer.encode(part))
            tokens = tuple(tokenizer.vocab[id] for id in ids)
            yield PreToken(part, tokens, (), tokens, ids), True
