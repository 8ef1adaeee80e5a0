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
    ChoiceText,
    Form,
    Piece,
    TokenSpelling,
    chat_form,
    score_prompt,
    text_form,
)
from groundup.serving.completion_plan import Plan, make_plan
from groundup.serving.protocol import ChatRequest, CompletionRequest

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
        self._name = name
        self._language_model = language_model
        self._settings = settings
        self._scheduler = scheduler
        spelling = TokenSpelling(language_model.tokenizer)
        self._text_form, self._chat_form = text_form(spelling), chat_form(spelling)

    async def answer(self, request: Request, body: CompletionRequest | ChatRequest) -> Response:
        plan_it = functools.partial(
            make_plan, body, self._name, self._language_model, self._settings
        )
        length = int(request.headers.get("content-length", _LONG_BYTES))
        plan = await asyncio.to_thread(plan_it) if length >= _LONG_BYTES else plan_it()
        client = request.scope["client_name"]
        running = _Running(plan, self._language_model, self._scheduler, client)
        form = self._chat_form if isinstance(body, ChatRequest) else self._text_form
        frame = {
            "id": f"{form.id_prefix}-{secrets.token_hex(12)}",
            "object": form.chunk_object if body.stream else form.object,
            "created": int(time.time()),
            "model": self._name,
        }
        try:
            if body.stream:
                # The first tokens decide the status: an error before them is not a stream.
                news = await _unless_left(request, running.next_pieces())
                events = _events(running, form, frame, news, body.wants_usage_chunk)
                return _EventStream(events, running.close)
            parts = await _unless_left(request, running.collect())
        except _ClientLeftError:
            running.close()
            return Response(status_code=_CLIENT_LEFT)
        except BaseException:
            running.close()
            raise
        render = functools.partial(_render, running, form, frame, parts)
        # With log-probabilities an answer may have megabytes.
        is_long = plan.echo or plan.has_logprobs
        content = await asyncio.to_thread(render) if is_long else render()
        return Response(content, media_type="application/json")


async def _events(
    running: _Running,
    form: Form,
    frame: dict[str, Any],
    news: list[tuple[int, list[Piece]]],
    wants_usage: bool,
) -> AsyncIterator[bytes]:
    """The stream: pieces as they come, the usage if wanted, and [DONE]."""
    head = _to_json(frame)[:-1]
    try:
        if form.opening is not None:
            openings = [_choice(i, form.opening, None, None) for i in range(len(running.texts))]
            yield b"".join([_wrap(head, opening) for opening in openings])
        while True:
            chunks = [chunk for one in news for chunk in _chunks(running, form, head, *one)]
            if chunks:
                yield b"".join(chunks)
            if running.is_done:
                break
            news = await running.next_pieces()
    except ApiError as error:
        # The status has been sent; clients know an error inside a stream by this shape.
        yield _event(error.body())
        return
    except Exception:
        _log.exception("a stream failed")
        yield _event(internal_error().body())
        return
    if wants_usage:
        yield _event({**frame, "choices": [], **running.summary()})
    yield b"data: [DONE]\n\n"


def _chunks(
    running: _Running, form: Form, head: str, index: int, pieces: list[Piece]
) -> Iterator[bytes]:
    """One event a token if log-probabilities are wanted, else one for all that has come."""
    has_logprobs, reason = running.plan.has_logprobs, running.texts[index].finish_reason
    groups = [[piece] for piece in pieces] if has_logprobs and pieces else [pieces]
    for number, group in enumerate(groups, start=1):
        end = reason if number == len(groups) else None
        if group or end:
            field = form.piece("".join([piece.text for piece in group]))
            logprobs = form.logprobs(group) if has_logprobs else None
            yield _wrap(head, _choice(index, field, logprobs, end))


def _choice(
    index: int, field: dict[str, Any], logprobs: Any, finish_reason: str | None
) -> dict[str, Any]:
    return {"index": index, **field, "logprobs": logprobs, "finish_reason": finish_reason}


def _wrap(head: str, choice: dict[str, Any]) -> bytes:
    return f'data: {head},"choices":[{_to_json(choice)}],"usage":null}}\n\n'.encode()


def _event(value: dict[str, Any]) -> bytes:
    return f"data: {_to_json(value)}\n\n".encode()


def _render(
    running: _Running, form: Form, frame: dict[str, Any], parts: list[list[Piece]]
) -> bytes:
    """The whole answer, one choice at a time: the encoder holds Python's lock."""
    choices = [
        _to_json(
            _choice(
                index,
                form.whole("".join(piece.text for piece in pieces)),
                form.logprobs(pieces) if running.plan.has_logprobs else None,
                running.texts[index].finish_reason,
            )
        )
        for index, pieces in enumerate(parts)
    ]
    head, tail = _to_json(frame)[:-1], _to_json(running.summary())[1:]
    return f'{head},"choices":[{",".join(choices)}],{tail}'.encode()


class _Running:
    """The choices of a plan while they are generated. `close` it whatever happens, so that rows
    that nobody reads are freed."""

    def __init__(
        self, plan: Plan, language_model: LanguageModel, scheduler: Scheduler, client: str
    ) -> None:
        self.plan = plan
        self._scheduler = scheduler
        model, tokenizer = language_model.model, language_model.tokenizer
        prompts = [prompt for prompt in plan.prompts for _ in range(plan.num_choices)]
        self.texts = [
            ChoiceText(
                tokenizer,
                plan.wanted.stop,
                echo=prompt.text if plan.echo else None,
                with_entries=plan.has_logprobs,
            )
            for prompt in prompts
        ]
        if not plan.wanted.max_tokens:
            for text in self.texts:
                text.finish_reason = "length"
        # Echoed prompts are scored before their choices begin, by calls between engine steps.
        is_scored = plan.echo and plan.has_logprobs
        self._scored = [n for n, prompt in enumerate(plan.prompts) if is_scored and prompt.text]
        calls = [
            functools.partial(
                score_prompt, model, tokenizer, plan.prompts[number].ids, plan.num_alternatives
            )
            for number in self._scored
        ]
        self._num_calls = self._num_calls_left = len(calls)
        work: list[Any] = [*calls, *(plan.requests if plan.wanted.max_tokens else ())]
        self._job = scheduler.submit(work, client) if work else None
        # What choices begin with that needs no score.
        self._pending = {
            index: [Piece(prompt.text)] if plan.echo and prompt.text else []
            for index, prompt in enumerate(prompts)
            if index // plan.num_choices not in self._scored
        }

    @property
    def is_done(self) -> bool:
        return not self._num_calls_left and all(text.is_done for text in self.texts)

    def summary(self) -> dict[str, Any]:
        num_prompt = sum(len(prompt.ids) for prompt in self.plan.prompts)
        num_new = sum(text.num_tokens for text in self.texts)
        usage = {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_new,
            "total_tokens": num_prompt + num_new,
        }
        seed = self.plan.wanted.seed
        # As it was sent: requests have signed seeds.
        return {"usage": usage, "seed": seed - 2**64 if seed >= 2**63 else seed}

    async def next_pieces(self) -> list[tuple[int, list[Piece]]]:
        """Wait for tokens: the choices that have more text now, or have come to their end."""
        news, self._pending = self._pending, {}
        if self._job is None:
            return list(news.items())
        for event in await self._job.next_events():
            index = event.number - self._num_calls
            if event.error is not None and (index < 0 or not self.texts[index].is_done):
                raise event.error
            if index < 0:
                self._num_calls_left -= 1
                number = self._scored[event.number]
                text = self.plan.prompts[number].text
                pieces = [Piece(text[entry.begin : entry.end], entry) for entry in event.result]
                for choice in range(self.plan.num_choices):
                    news[number * self.plan.num_choices + choice] = list(pieces)
            elif event.token is not None and not self.texts[index].is_done:
                news.setdefault(index, []).extend(self.texts[index].push(event.token))
                if event.token.finish_reason is None and self.texts[index].is_done:
                    # A stop string has come, of which the engine knows nothing.
                    self._scheduler.cancel([self._job.rows[event.number]])
        return list(news.items())

    async def collect(self) -> list[list[Piece]]:
        """All pieces of each choice, to its end."""
        parts: list[list[Piece]] = [[] for _ in self.texts]
        while True:
            for index, pieces in await self.next_pieces():
                parts[index] += pieces
            if self.is_done:
                return parts

    def close(self) -> None:
        """Cancel what has not come to its end."""
        if self._job is not None and not self.is_done:
            self._scheduler.cancel(self._job.rows)


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
