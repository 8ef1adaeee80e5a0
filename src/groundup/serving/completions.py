"""POST /v1/completions and /v1/chat/completions from the request to its answer: one JSON object, or
server-sent events.

The scheduler generates a row for each choice; its ids become text in `choices`; here the pieces
become what OpenAI's clients read.
"""

import asyncio
import functools
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from groundup.generation import GenerationRequest, LanguageModel
from groundup.serving.api_errors import ApiError, internal_error
from groundup.serving.choices import ChoiceText, Piece, TokenSpelling
from groundup.serving.metrics import Metrics
from groundup.serving.protocol import AnyRequest, ChatRequest, make_requests
from groundup.serving.scheduler import Scheduler
from groundup.serving.settings import ServerSettings
from groundup.serving.workers import Workers
from groundup.tokenizer.chat_template import CHATML

Result = TypeVar("Result")

_log = logging.getLogger(__name__)

# Encoding a shorter prompt takes no longer than handing it to a thread.
_LONG_BYTES = 2_000
# What servers log for a client that left; nobody reads it.
_CLIENT_LEFT = 499

# ASCII, because some clients take other line ends of Unicode for the end of an event.
_to_json = json.JSONEncoder(separators=(",", ":")).encode


class ServedModel:
    """A loaded model and the scheduler that owns its engine."""

    def __init__(
        self,
        name: str,
        language_model: LanguageModel,
        settings: ServerSettings,
        metrics: Metrics,
        workers: Workers,
    ) -> None:
        self.name = name
        self._workers = workers
        self.language_model = language_model
        self.scheduler = Scheduler(
            lambda: language_model.make_engine(settings.max_rows), settings, metrics, name
        )
        self.spelling = TokenSpelling(language_model.tokenizer)
        self._settings = settings
        # Requests that are being read; the scheduler has them later.
        self.num_users = 0

    @property
    def is_busy(self) -> bool:
        scheduler = self.scheduler
        return bool(self.num_users or scheduler.num_running or scheduler.num_waiting)

    async def answer(self, request: Request, body: AnyRequest) -> Response:
        client = request.scope["client_name"]
        make = functools.partial(make_requests, body, self.language_model, self._settings)
        length = int(request.headers.get("content-length", _LONG_BYTES))
        template = self.language_model.tokenizer.chat_template
        if isinstance(body, ChatRequest) and template not in (None, CHATML):
            # A foreign template is another process, which may take its time.
            requests = await self._workers.run("template", client, make)
        elif length >= _LONG_BYTES:
            requests = await self._workers.run("text", client, make)
        else:
            requests = make()
        running = _Running(self, requests, body, client)
        try:
            if body.stream:
                # The first tokens decide the status: an error before them is not a stream.
                news = await _unless_left(request, running.next_pieces())
                return _EventStream(running.events(news), running.close)
            parts = await _unless_left(request, running.collect())
        except BaseException as error:
            running.close()
            if isinstance(error, ClientDisconnect):
                return Response(status_code=_CLIENT_LEFT)
            raise
        render = functools.partial(running.render, parts)
        # With log-probabilities an answer may have megabytes.
        if running.has_logprobs:
            content = await self._workers.run("answer", client, render)
        else:
            content = render()
        return Response(content, media_type="application/json")


class _Running:
    """The choices of an answer while they are generated. `close` it whatever happens, so that rows
    that nobody reads are freed."""

    def __init__(
        self,
        model: ServedModel,
        requests: Sequence[GenerationRequest],
        body: AnyRequest,
        client: str,
    ) -> None:
        self.has_logprobs = body.num_alternatives >= 0
        self._seed = requests[0].seed
        self._num_prompt_tokens = sum(len(one.prompt_ids) for one in requests[:: body.num_choices])
        self._scheduler = model.scheduler
        self._spelling = model.spelling
        self._wants_usage = body.stream_options and body.stream_options.include_usage
        self._is_chat = isinstance(body, ChatRequest)
        kind = "chat.completion" if self._is_chat else "text_completion"
        self._frame = {
            "id": f"{'chatcmpl' if self._is_chat else 'cmpl'}-{secrets.token_hex(12)}",
            "object": f"{kind}.chunk" if self._is_chat and body.stream else kind,
            "created": int(time.time()),
            "model": model.name,
        }
        self._head = _to_json(self._frame)[:-1]
        self._texts = [
            ChoiceText(model.language_model.tokenizer, body.stop_strings, self.has_logprobs)
            for _ in requests
        ]
        self._job = self._scheduler.submit(requests, client)

    @property
    def is_done(self) -> bool:
        return all(text.is_done for text in self._texts)

    async def events(self, news: list[tuple[int, list[Piece]]]) -> AsyncIterator[bytes]:
        """The stream: pieces as they come, the usage if wanted, and [DONE]."""
        try:
            if self._is_chat:
                opening = {"delta": {"role": "assistant", "content": ""}}
                rest = {**opening, "logprobs": None, "finish_reason": None}
                yield b"".join(self._wrap({"index": n, **rest}) for n in range(len(self._texts)))
            while True:
                if chunks := [self._wrap(chunk) for one in news for chunk in self._chunks(*one)]:
                    yield b"".join(chunks)
                if self.is_done:
                    break
                news = await self.next_pieces()
            if self._wants_usage:
                yield _event({**self._frame, "choices": [], **self._summary()})
            yield b"data: [DONE]\n\n"
        except Exception as error:
            if not isinstance(error, ApiError):
                _log.exception("a stream failed")
                error = internal_error()
            # The status has been sent; clients know an error inside a stream by this shape.
            yield _event(error.body())

    def _chunks(self, index: int, pieces: list[Piece]) -> Iterator[dict[str, Any]]:
        """One event a token if log-probabilities are wanted, else one for all that has come."""
        groups = [[piece] for piece in pieces] if self.has_logprobs and pieces else [pieces]
        for number, group in enumerate(groups, start=1):
            end = self._texts[index].finish_reason if number == len(groups) else None
            if group or end:
                yield self._choice(index, group, end)

    def _choice(
        self, index: int, pieces: list[Piece], reason: str | None, is_whole: bool = False
    ) -> dict[str, Any]:
        text, spelling = "".join([piece.text for piece in pieces]), self._spelling
        field: dict[str, Any] = {"text": text}
        if self._is_chat and is_whole:
            field = {"message": {"role": "assistant", "content": text, "refusal": None}}
        elif self._is_chat:
            field = {"delta": {"content": text} if text else {}}
        tell = spelling.chat_logprobs if self._is_chat else spelling.logprobs
        field["logprobs"] = tell(pieces) if self.has_logprobs else None
        return {"index": index, **field, "finish_reason": reason}

    def _wrap(self, choice: dict[str, Any]) -> bytes:
        return f'data: {self._head},"choices":[{_to_json(choice)}],"usage":null}}\n\n'.encode()

    def render(self, parts: list[list[Piece]]) -> bytes:
        """The whole answer, one choice at a time: the encoder holds Python's lock."""
        choices = []
        for index, (pieces, text) in enumerate(zip(parts, self._texts, strict=True)):
            choice = self._choice(index, pieces, text.finish_reason, is_whole=True)
            choices.append(_to_json(choice))
        tail = _to_json(self._summary())[1:]
        return f'{self._head},"choices":[{",".join(choices)}],{tail}'.encode()

    def _summary(self) -> dict[str, Any]:
        num_new = sum(text.num_tokens for text in self._texts)
        usage = {"prompt_tokens": self._num_prompt_tokens, "completion_tokens": num_new}
        usage["total_tokens"] = self._num_prompt_tokens + num_new
        # As it was sent: requests have signed seeds.
        return {"usage": usage, "seed": self._seed - 2**64 * (self._seed >= 2**63)}

    async def next_pieces(self) -> list[tuple[int, list[Piece]]]:
        """Wait for tokens: the choices that have more text now, or have come to their end."""
        news: dict[int, list[Piece]] = {}
        for index, came in await self._job.next_events():
            text = self._texts[index]
            if text.is_done:
                continue
            if isinstance(came, ApiError):
                raise came
            news.setdefault(index, []).extend(text.push(came))
            if came.finish_reason is None and text.finish_reason is not None:
                # A stop string has come, of which the engine knows nothing.
                self._scheduler.cancel([self._job.rows[index]])
        return list(news.items())

    async def collect(self) -> list[list[Piece]]:
        """All pieces of each choice, to its end."""
        parts: list[list[Piece]] = [[] for _ in self._texts]
        while True:
            for index, pieces in await self.next_pieces():
                parts[index] += pieces
            if self.is_done:
                return parts

    def close(self) -> None:
        """Cancel what has not come to its end."""
        if not self.is_done:
            self._scheduler.cancel(self._job.rows)


def _event(value: dict[str, Any]) -> bytes:
    return f"data: {_to_json(value)}\n\n".encode()


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


async def _unless_left(request: Request, awaitable: Awaitable[Result]) -> Result:
    """Wait, but no longer than the client does."""

    async def until_left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    work = asyncio.ensure_future(awaitable)
    left = asyncio.ensure_future(until_left())
    try:
        await asyncio.wait({work, left}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        raise ClientDisconnect
    finally:
        work.cancel()
        left.cancel()
