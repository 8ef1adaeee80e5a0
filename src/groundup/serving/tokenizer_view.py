"""`POST /api/tokenize`: a text's pre-tokens, tokens and merge steps, for the page that shows them.

The steps come from `tokenizer.inspection`; showing them is the work of static/tokenizer.js.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from fastapi import APIRouter, Response

from groundup.serving.api_errors import ApiError, answers
from groundup.serving.bodies import JsonRoute
from groundup.serving.protocol import Body
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.inspection import PreToken, follow_merges
from groundup.tokenizer.reference import split_special_tokens

MAX_CHARACTERS = 20_000
# The steps of one pre-token show each about half of its bytes as symbols, so that their size grows
# with the square of its length.
MAX_PRE_TOKEN_BYTES = 128
MAX_SYMBOLS = 100_000


class TokenizeRequest(Body):
    """A text to follow."""

    text: str


def router_for_tokenizer(tokenizer: Tokenizer) -> APIRouter:
    """The route that explains texts with this tokenizer."""
    router = APIRouter(route_class=JsonRoute)

    # One thread: the work is Python's own, and several would keep the streams of others waiting.
    worker = ThreadPoolExecutor(1, "groundup-tokenizer")

    @router.post("/api/tokenize", responses=answers(400))
    async def tokenize(request: TokenizeRequest) -> Response:
        if len(request.text) > MAX_CHARACTERS:
            raise ApiError(
                400,
                f"the text has {len(request.text):,} characters but the tokenizer view takes "
                f"{MAX_CHARACTERS:,}: shorten it, or use groundup tokenizer encode",
                param="text",
            )
        loop = asyncio.get_running_loop()
        try:
            content = await loop.run_in_executor(
                worker, describe_tokenization, tokenizer, request.text
            )
        except UnicodeEncodeError as error:
            raise ApiError(
                400,
                f"character {error.start} of the text is half of a surrogate pair and has no "
                f"UTF-8: remove it",
                param="text",
            ) from error
        return Response(content, media_type="application/json")

    return router


def describe_tokenization(tokenizer: Tokenizer, text: str) -> bytes:
    """Follow a text through pre-tokens and merges to its ids, as JSON.

    One pre-token after the other becomes JSON, which takes a small part of the memory.

    tokenizer: what encodes.
    text: what to follow.
    """
    num_bytes = len(text.encode())
    pre_tokens: list[str] = []
    num_ids = start = 0
    for pre_token, is_too_long in _explain_within_limits(tokenizer, text):
        end = start + len(pre_token.text)
        view = {
            "text": pre_token.text,
            "start": start,
            "end": end,
            "tokens": [
                {"id": id, "text": tokenizer.decode([id]), "bytes": list(token)}
                for id, token in zip(pre_token.ids, pre_token.tokens, strict=True)
            ],
            "merges": [
                {
                    "left": list(step.left),
                    "right": list(step.right),
                    "rank": step.rank,
                    "symbols": list(map(list, step.symbols)),
                }
                for step in pre_token.steps
            ],
            "is_special": pre_token.is_special,
            "is_whole_word": pre_token.is_whole_word,
            "is_too_long": is_too_long,
        }
        pre_tokens.append(json.dumps(view))
        start = end
        num_ids += len(pre_token.ids)
    counts = {"num_ids": num_ids, "num_bytes": num_bytes, "num_characters": len(text)}
    return f'{{"pre_tokens":[{",".join(pre_tokens)}],{json.dumps(counts)[1:]}'.encode()


def _explain_within_limits(tokenizer: Tokenizer, text: str) -> Iterator[tuple[PreToken, bool]]:
    """The pre-tokens in order, each with whether it was too long for its steps to be followed."""
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
