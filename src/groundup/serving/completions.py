"""POST /v1/completions and /v1/chat/completions: from the request to one JSON object or a stream of
server-sent events.

The scheduler generates one row per choice; `choices` decodes its ids; this module formats the
pieces as OpenAI's clients expect them.
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
from groundup.serving.workers import Kind, Workers
from groundup.tokenizer.chat_template import CHATML
from groundup.tokenizer.patterns import CUSTOM

Result = TypeVar("Result")

_log = logging.getLogger(__name__)

# Encoding a shorter prompt is faster than a thread switch.
_LONG_BYTES = 2_000

# ASCII, because some clients end an event at any of Unicode's line breaks.
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
        # Requests that are not in the scheduler yet also keep the model loaded.
        self.num_users = 0

    @property
    def is_busy(self) -> bool:
        scheduler = self.scheduler
        return bool(self.num_users or scheduler.num_running or scheduler.num_waiting)

    async def answer(self, request: Request, body: AnyRequest) -> Response:
        client = request.scope["client_name"]
        make = functools.partial(make_requests, body, self.language_model, self._settings)
        length = int(request.headers.get("content-length", _LONG_BYTES))
        tokenizer = self.language_model.tokenizer
        # Templates other than ours run in a subprocess; other patterns may take a while to match.
        is_slow = isinstance(body, ChatRequest) and tokenizer.chat_template not in (None, CHATML)
        if is_slow or length >= _LONG_BYTES or tokenizer.definition.pattern.name == CUSTOM:
            kind: Kind = "template" if is_slow else "text"
            requests = await self._workers.run(kind, client, make)
        else:
            requests = make()
        running = _Running(self, requests, body, client)
        try:
            if body.stream:
                # Wait for the first tokens: an error before them can still set the status.
                first = await _until_disconnect(request, running.next_pieces())
                return _EventStream(running.events(first), running.close)
            parts = await _until_disconnect(request, running.collect())
        except BaseException:
            running.close()
            raise
        render = functools.partial(running.render, parts)
        # With logprobs, a response may be megabytes long.
        is_long = running.has_logprobs
        content = await self._workers.run("answer", client, render) if is_long else render()
        return Response(content, media_type="application/json")


class _Running:
    """The choices of a response while they are generated. Always `close` it, which frees the rows
    that are still running."""

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

    async def events(self, pieces: list[tuple[int, list[Piece]]]) -> AsyncIterator[bytes]:
        """Yield the stream: pieces as they arrive, the usage if requested, and [DONE]."""
        try:
            if self._is_chat:
                opening = {"delta": {"role": "assistant", "content": ""}}
                rest = {**opening, "logprobs": None, "finish_reason": None}
                yield b"".join(self._wrap({"index": n, **rest}) for n in range(len(self._texts)))
            while True:
                if chunks := [self._wrap(chunk) for one in pieces for chunk in self._chunks(*one)]:
                    yield b"".join(chunks)
                if self.is_done:
                    break
                pieces = await self.next_pieces()
            if self._wants_usage:
                yield _event({**self._frame, "choices": [], **self._summary()})
            yield b"data: [DONE]\n\n"
        except Exception as error:
            if not isinstance(error, ApiError):
                _log.exception("a stream failed")
                error = internal_error()
            # The status has been sent; clients recognize an error inside a stream by this shape.
            yield _event(error.body())

    def _chunks(self, index: int, pieces: list[Piece]) -> Iterator[dict[str, Any]]:
        """Yield one event per token with logprobs, else one for all new pieces."""
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
        logprobs = spelling.chat_logprobs if self._is_chat else spelling.logprobs
        field["logprobs"] = logprobs(pieces) if self.has_logprobs else None
        return {"index": index, **field, "finish_reason": reason}

    def _wrap(self, choice: dict[str, Any]) -> bytes:
        return f'data: {self._head},"choices":[{_to_json(choice)}],"usage":null}}\n\n'.encode()

    def render(self, parts: list[list[Piece]]) -> bytes:
        """Encode the whole response, one choice at a time: the JSON encoder holds the GIL."""
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
        # As the client sent it: seeds in requests are signed.
        return {"usage": usage, "seed": self._seed - 2**64 * (self._seed >= 2**63)}

    async def next_pieces(self) -> list[tuple[int, list[Piece]]]:
        """Wait for tokens; return the choices that have new text or have finished."""
        pieces: dict[int, list[Piece]] = {}
        for index, event in await self._job.next_events():
            text = self._texts[index]
            if text.is_done:
                continue
            if isinstance(event, ApiError):
                raise event
            pieces.setdefault(index, []).extend(text.push(event))
            if event.finish_reason is None and text.finish_reason is not None:
                # A stop string was found; the engine does not check those.
                self._scheduler.cancel([self._job.rows[index]])
        return list(pieces.items())

    async def collect(self) -> list[list[Piece]]:
        """Wait for all choices to finish; return the pieces of each."""
        parts: list[list[Piece]] = [[] for _ in self._texts]
        while not self.is_done:
            for index, pieces in await self.next_pieces():
                parts[index] += pieces
        return parts

    def close(self) -> None:
        """Cancel the rows if any is unfinished."""
        if not self.is_done:
            self._scheduler.cancel(self._job.rows)


def _event(value: dict[str, Any]) -> bytes:
    return f"data: {_to_json(value)}\n\n".encode()


class _EventStream(StreamingResponse):
    """Server-sent events that free their rows however the response ends, even before it starts."""

    def __init__(self, events: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


async def _until_disconnect(request: Request, awaitable: Awaitable[Result]) -> Result:
    """Await it; raise ClientDisconnect if the client disconnects first."""

    async def wait_for_disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    work = asyncio.ensure_future(awaitable)
    disconnect = asyncio.ensure_future(wait_for_disconnect())
    try:
        await asyncio.wait({work, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        raise ClientDisconnect
    finally:
        work.cancel()
        disconnect.cancel()
