"""POST /v1/completions: one JSON answer, or a stream of server-sent events."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from groundup.serving.api_errors import ApiError, internal_error
from groundup.serving.choices import Piece, TokenSpelling, finite
from groundup.serving.completion_plan import Plan, make_plan
from groundup.serving.protocol import Choice, CompletionRequest, Logprobs, Usage
from groundup.serving.writing import Writing

if TYPE_CHECKING:
    from groundup.generation import LanguageModel
    from groundup.serving.scheduler import Scheduler
    from groundup.serving.settings import ServerSettings

Result = TypeVar("Result")

_log = logging.getLogger(__name__)

# Encoding less than this takes no longer than to hand it to a thread.
_LONG_BYTES = 2_000
# What servers log of a client that left; nobody is there to read it.
_CLIENT_LEFT = 499


class _ClientLeftError(Exception):
    """The client closed the connection before the answer was there."""


class Completions:
    """Answers completion requests for one model."""

    def __init__(
        self, language_model: LanguageModel, settings: ServerSettings, scheduler: Scheduler
    ) -> None:
        self._language_model = language_model
        self._settings = settings
        self._scheduler = scheduler
        self._spelling = TokenSpelling(language_model.tokenizer)

    async def answer(self, request: Request, body: CompletionRequest) -> Response:
        plan = await self._plan(request, body)
        client = request.scope["client_name"]
        writing = Writing(plan, self._scheduler, self._language_model, client)
        frame = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self._settings.model_name,
        }
        try:
            begin = await _unless_left(request, writing.prompt_pieces())
            if body.stream:
                # The first tokens decide the status: an error before them is no stream.
                news = [] if writing.is_done else await _unless_left(request, writing.next_pieces())
                events = self._events(writing, frame, begin, news, body.wants_usage_chunk())
                return _EventStream(events, writing.close)
            parts = await _unless_left(request, self._collect(writing, begin))
        except _ClientLeftError:
            writing.close()
            return Response(status_code=_CLIENT_LEFT)
        except BaseException:
            writing.close()
            raise

        def render() -> bytes:
            return self._render(writing, frame, parts)

        # With likelihoods an answer may have megabytes.
        is_long = plan.echo or plan.num_alternatives >= 0
        content = await asyncio.to_thread(render) if is_long else render()
        return Response(content, media_type="application/json")

    async def _plan(self, request: Request, body: CompletionRequest) -> Plan:
        def make() -> Plan:
            return make_plan(body, self._language_model, self._settings)

        length = int(request.headers.get("content-length", _LONG_BYTES))
        return await asyncio.to_thread(make) if length >= _LONG_BYTES else make()

    def _render(self, writing: Writing, frame: dict[str, Any], parts: list[list[Piece]]) -> bytes:
        """The whole answer; JSON is made of a choice at a time, since that keeps Python's lock."""
        choices = [
            Choice(
                index=index,
                text="".join(piece.text for piece in pieces),
                logprobs=self._logprobs(writing.plan, pieces),
                finish_reason=writing.writers[index].finish_reason,
            ).model_dump_json()
            for index, pieces in enumerate(parts)
        ]
        rest = {"usage": _usage(writing).model_dump(), "seed": writing.plan.seed}
        head, tail = _to_json(frame)[:-1], _to_json(rest)[1:]
        return f'{head},"choices":[{",".join(choices)}],{tail}'.encode()

    async def _collect(self, writing: Writing, begin: list[list[Piece]]) -> list[list[Piece]]:
        parts = [list(pieces) for pieces in begin]
        while not writing.is_done:
            for index, pieces in await writing.next_pieces():
                parts[index] += pieces
        return parts

    async def _events(
        self,
        writing: Writing,
        frame: dict[str, Any],
        begin: list[list[Piece]],
        news: list[tuple[int, list[Piece]]],
        wants_usage: bool,
    ) -> AsyncIterator[bytes]:
        """The stream: pieces as they come, the usage if wanted, and [DONE]."""
        frame_text = _to_json(frame)[:-1]
        try:
            first = [
                await asyncio.to_thread(self._chunk, frame_text, writing.plan, index, pieces, None)
                for index, pieces in enumerate(begin)
                if pieces
            ]
            if writing.is_done and not news:
                news = [(index, []) for index in range(len(begin))]
            yield b"".join([*first, *self._chunks(writing, frame_text, news)])
            while not writing.is_done:
                chunks = self._chunks(writing, frame_text, await writing.next_pieces())
                if chunks:
                    yield b"".join(chunks)
        except ApiError as error:
            # The status has been sent; clients know an error inside a stream by this shape.
            yield _event(error.body())
            return
        except Exception:
            _log.exception("a stream failed")
            yield _event(internal_error().body())
            return
        if wants_usage:
            usage = _usage(writing).model_dump()
            yield _event({**frame, "choices": [], "usage": usage, "seed": writing.plan.seed})
        yield b"data: [DONE]\n\n"

    def _chunks(
        self, writing: Writing, frame_text: str, news: list[tuple[int, list[Piece]]]
    ) -> list[bytes]:
        """One event a token where likelihoods are wanted, else one for all that has come."""
        plan = writing.plan
        chunks = []
        for index, pieces in news:
            reason = writing.writers[index].finish_reason
            groups = [[piece] for piece in pieces] if plan.num_alternatives >= 0 else [pieces]
            groups = groups or [[]]
            for number, group in enumerate(groups, start=1):
                end = reason if number == len(groups) else None
                if group or end:
                    chunks.append(self._chunk(frame_text, plan, index, group, end))
        return chunks

    def _chunk(
        self,
        frame_text: str,
        plan: Plan,
        index: int,
        pieces: Sequence[Piece],
        finish_reason: str | None,
    ) -> bytes:
        text = "".join([piece.text for piece in pieces])
        logprobs = self._logprobs(plan, pieces)
        likelihoods = "null" if logprobs is None else _to_json(logprobs.model_dump())
        reason = "null" if finish_reason is None else f'"{finish_reason}"'
        # Put together by hand: this is done for every token of every client.
        return (
            f'data: {frame_text},"choices":[{{"index":{index},"text":{_quote(text)},'
            f'"logprobs":{likelihoods},"finish_reason":{reason}}}],"usage":null}}\n\n'
        ).encode()

    def _logprobs(self, plan: Plan, pieces: Sequence[Piece]) -> Logprobs | None:
        if plan.num_alternatives < 0:
            return None
        result = Logprobs()
        for piece in pieces:
            entry = piece.entry
            if entry is None:
                continue
            result.tokens.append(self._spelling[entry.id])
            result.token_ids.append(entry.id)
            result.text_offset.append(entry.begin)
            if entry.log_probability is None:
                result.token_logprobs.append(None)
                result.top_logprobs.append(None)
                result.top_ids.append([])
                continue
            likeliest, ids = self._spelling.likeliest(entry)
            result.token_logprobs.append(finite(entry.log_probability))
            result.top_logprobs.append(likeliest)
            result.top_ids.append(ids)
        return result


class _EventStream(StreamingResponse):
    """Server-sent events that free their rows however they end, begun or not."""

    def __init__(self, events: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self.headers["Cache-Control"] = "no-store"
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


# ASCII, because some clients take other line ends of Unicode for the end of an event.
_to_json = json.JSONEncoder(separators=(",", ":")).encode
_quote = json.encoder.encode_basestring_ascii


def _event(value: dict[str, Any]) -> bytes:
    return f"data: {_to_json(value)}\n\n".encode()


def _usage(writing: Writing) -> Usage:
    read, written = writing.plan.num_prompt_tokens, writing.num_new_tokens
    return Usage(prompt_tokens=read, completion_tokens=written, total_tokens=read + written)


async def _unless_left(request: Request, awaitable: Awaitable[Result]) -> Result:
    """Wait, but no longer than the client does."""
    work = asyncio.ensure_future(awaitable)
    left = asyncio.ensure_future(_until_left(request))
    try:
        await asyncio.wait({work, left}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        raise _ClientLeftError
    finally:
        work.cancel()
        left.cancel()


async def _until_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
