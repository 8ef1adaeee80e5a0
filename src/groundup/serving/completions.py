"""POST /v1/completions and /v1/chat/completions from the request to its answer: one JSON object, or
server-sent events.

A request becomes a plan (`completion_plan`), whose rows the scheduler generates; their ids become
text in `choices`; here the pieces become what OpenAI's clients read.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from groundup.serving.api_errors import ApiError, internal_error
from groundup.serving.choices import (
    CHAT_FORM,
    TEXT_FORM,
    ChoiceText,
    Piece,
    TokenSpelling,
    score_prompt,
)
from groundup.serving.completion_plan import AnyRequest, Plan, make_plan
from groundup.serving.protocol import ChatRequest

if TYPE_CHECKING:
    from groundup.generation import LanguageModel
    from groundup.serving.scheduler import Scheduler
    from groundup.serving.settings import ServerSettings

Result = TypeVar("Result")

_log = logging.getLogger(__name__)

# Encoding a shorter prompt takes no longer than handing it to a thread.
_LONG_BYTES = 2_000
# What servers log for a client that left; nobody reads it.
_CLIENT_LEFT = 499

# ASCII, because some clients take other line ends of Unicode for the end of an event.
_to_json = json.JSONEncoder(separators=(",", ":")).encode


class _ClientLeftError(Exception):
    """The client closed the connection before the answer was there."""


class Completions:
    """Answers completion requests for one model."""

    def __init__(
        self,
        name: str,
        language_model: LanguageModel,
        settings: ServerSettings,
        scheduler: Scheduler,
    ) -> None:
        self.name = name
        self.language_model = language_model
        self.scheduler = scheduler
        self.spelling = TokenSpelling(language_model.tokenizer)
        self._settings = settings

    async def answer(self, request: Request, body: AnyRequest) -> Response:
        plan_it = functools.partial(make_plan, body, self.name, self.language_model, self._settings)
        length = int(request.headers.get("content-length", _LONG_BYTES))
        plan = await asyncio.to_thread(plan_it) if length >= _LONG_BYTES else plan_it()
        running = _Running(self, plan, body, request.scope["client_name"])
        try:
            if body.stream:
                # The first tokens decide the status: an error before them is not a stream.
                news = await _unless_left(request, running.next_pieces())
                return _EventStream(running.events(news), running.close)
            parts = await _unless_left(request, running.collect())
        except _ClientLeftError:
            running.close()
            return Response(status_code=_CLIENT_LEFT)
        except BaseException:
            running.close()
            raise
        # With log-probabilities an answer may have megabytes.
        is_long = plan.echo or plan.has_logprobs
        content = (
            await asyncio.to_thread(running.render, parts) if is_long else running.render(parts)
        )
        return Response(content, media_type="application/json")


class _Running:
    """The choices of a plan while they are generated. `close` it whatever happens, so that rows
    that nobody reads are freed."""

    def __init__(self, model: Completions, plan: Plan, body: AnyRequest, client: str) -> None:
        self._plan = plan
        self._scheduler = model.scheduler
        self._spelling = model.spelling
        self._wants_usage = body.wants_usage_chunk
        self._form = form = CHAT_FORM if isinstance(body, ChatRequest) else TEXT_FORM
        self._frame = {
            "id": f"{form.id_prefix}-{secrets.token_hex(12)}",
            "object": form.chunk_object if body.stream else form.object,
            "created": int(time.time()),
            "model": model.name,
        }
        self._head = _to_json(self._frame)[:-1]
        tokenizer, stop = model.language_model.tokenizer, plan.wanted.stop
        prompts = [prompt for prompt in plan.prompts for _ in range(plan.num_choices)]
        echoes = [prompt.text if plan.echo else None for prompt in prompts]
        self._texts = [
            ChoiceText(tokenizer, stop, echo=echo, with_entries=plan.has_logprobs)
            for echo in echoes
        ]
        if not plan.wanted.max_tokens:
            for text in self._texts:
                text.finish_reason = "length"
        # Echoed prompts are scored before their choices begin, by calls between engine steps.
        is_scored = plan.echo and plan.has_logprobs
        self._scored = [n for n, prompt in enumerate(plan.prompts) if is_scored and prompt.text]
        score = functools.partial(score_prompt, model.language_model.model, tokenizer)
        calls = [
            functools.partial(score, plan.prompts[number].ids, plan.num_alternatives)
            for number in self._scored
        ]
        self._num_calls = self._num_calls_left = len(calls)
        work: list[Any] = [*calls, *(plan.requests if plan.wanted.max_tokens else ())]
        self._job = self._scheduler.submit(work, client) if work else None
        # What choices begin with that needs no score.
        self._pending = {
            index: [Piece(echo)] if echo else []
            for index, echo in enumerate(echoes)
            if index // plan.num_choices not in self._scored
        }

    @property
    def is_done(self) -> bool:
        return not self._num_calls_left and all(text.is_done for text in self._texts)

    async def events(self, news: list[tuple[int, list[Piece]]]) -> AsyncIterator[bytes]:
        """The stream: pieces as they come, the usage if wanted, and [DONE]."""
        try:
            if self._form.opening is not None:
                opening = {**self._form.opening, "logprobs": None, "finish_reason": None}
                chunks = [{"index": index, **opening} for index in range(len(self._texts))]
                yield b"".join(map(self._wrap, chunks))
            while True:
                chunks = [chunk for one in news for chunk in self._chunks(*one)]
                if chunks:
                    yield b"".join(map(self._wrap, chunks))
                if self.is_done:
                    break
                news = await self.next_pieces()
        except ApiError as error:
            # The status has been sent; clients know an error inside a stream by this shape.
            yield _event(error.body())
            return
        except Exception:
            _log.exception("a stream failed")
            yield _event(internal_error().body())
            return
        if self._wants_usage:
            yield _event({**self._frame, "choices": [], **self._summary()})
        yield b"data: [DONE]\n\n"

    def _chunks(self, index: int, pieces: list[Piece]) -> Iterator[dict[str, Any]]:
        """One event a token if log-probabilities are wanted, else one for all that has come."""
        reason = self._texts[index].finish_reason
        groups = [[piece] for piece in pieces] if self._plan.has_logprobs and pieces else [pieces]
        for number, group in enumerate(groups, start=1):
            end = reason if number == len(groups) else None
            if group or end:
                yield self._choice(index, group, self._form.piece, end)

    def _choice(
        self,
        index: int,
        pieces: list[Piece],
        write: Callable[[str], dict[str, Any]],
        finish_reason: str | None,
    ) -> dict[str, Any]:
        has_logprobs = self._plan.has_logprobs
        logprobs = self._form.logprobs(self._spelling, pieces) if has_logprobs else None
        field = write("".join([piece.text for piece in pieces]))
        return {"index": index, **field, "logprobs": logprobs, "finish_reason": finish_reason}

    def _wrap(self, choice: dict[str, Any]) -> bytes:
        return f'data: {self._head},"choices":[{_to_json(choice)}],"usage":null}}\n\n'.encode()

    def render(self, parts: list[list[Piece]]) -> bytes:
        """The whole answer, one choice at a time: the encoder holds Python's lock."""
        write, texts = self._form.whole, self._texts
        choices = [
            _to_json(self._choice(index, pieces, write, texts[index].finish_reason))
            for index, pieces in enumerate(parts)
        ]
        tail = _to_json(self._summary())[1:]
        return f'{self._head},"choices":[{",".join(choices)}],{tail}'.encode()

    def _summary(self) -> dict[str, Any]:
        num_prompt = sum(len(prompt.ids) for prompt in self._plan.prompts)
        num_new = sum(text.num_tokens for text in self._texts)
        usage = {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_new,
            "total_tokens": num_prompt + num_new,
        }
        seed = self._plan.wanted.seed
        # As it was sent: requests have signed seeds.
        return {"usage": usage, "seed": seed - 2**64 if seed >= 2**63 else seed}

    async def next_pieces(self) -> list[tuple[int, list[Piece]]]:
        """Wait for tokens: the choices that have more text now, or have come to their end."""
        news, self._pending = self._pending, {}
        if self._job is None:
            return list(news.items())
        for event in await self._job.next_events():
            index = event.number - self._num_calls
            if event.error is not None and (index < 0 or not self._texts[index].is_done):
                raise event.error
            if index < 0:
                self._num_calls_left -= 1
                number = self._scored[event.number]
                text = self._plan.prompts[number].text
                pieces = [Piece(text[entry.begin : entry.end], entry) for entry in event.result]
                for choice in range(self._plan.num_choices):
                    news[number * self._plan.num_choices + choice] = list(pieces)
            elif event.token is not None and not self._texts[index].is_done:
                news.setdefault(index, []).extend(self._texts[index].push(event.token))
                if event.token.finish_reason is None and self._texts[index].is_done:
                    # A stop string has come, of which the engine knows nothing.
                    self._scheduler.cancel([self._job.rows[event.number]])
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
        if self._job is not None and not self.is_done:
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
        raise _ClientLeftError
    finally:
        work.cancel()
        left.cancel()
