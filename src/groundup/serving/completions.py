"""POST /v1/completions and /v1/chat/completions from the request to its answer: one JSON object, or
server-sent events.

A request becomes a plan (`completion_plan`), whose rows the scheduler generates; their ids become
text in `choices`; here the pieces become what OpenAI's clients read. The two routes differ in the
names around a text alone: an `AnswerForm`.
"""

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

from groundup.serving.answer_forms import AnswerForm, chat_form, text_form
from groundup.serving.api_errors import ApiError, internal_error
from groundup.serving.chat_protocol import ChatRequest
from groundup.serving.choices import ChoiceText, Piece, TokenSpelling, score_prompt
from groundup.serving.completion_plan import Plan, make_plan
from groundup.serving.protocol import CompletionRequest, Usage

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
        spelling = TokenSpelling(language_model.tokenizer)
        self._text_form, self._chat_form = text_form(spelling), chat_form(spelling)

    async def answer(self, request: Request, body: CompletionRequest | ChatRequest) -> Response:
        def plan_it() -> Plan:
            return make_plan(body, self._language_model, self._settings)

        length = int(request.headers.get("content-length", _LONG_BYTES))
        plan = await asyncio.to_thread(plan_it) if length >= _LONG_BYTES else plan_it()
        running = _Running(plan, self._language_model, self._scheduler, request)
        form = self._chat_form if isinstance(body, ChatRequest) else self._text_form
        frame = {
            "id": f"{form.id_prefix}-{secrets.token_hex(12)}",
            "object": form.chunk_object if body.stream else form.object,
            "created": int(time.time()),
            "model": self._settings.model_name,
        }
        try:
            begin = await _unless_left(request, running.prompt_pieces())
            if body.stream:
                # The first tokens decide the status: an error before them is not a stream.
                news = [] if running.is_done else await _unless_left(request, running.next_pieces())
                events = _events(running, form, frame, begin, news, body.wants_usage_chunk())
                return _EventStream(events, running.close)
            parts = await _unless_left(request, running.collect(begin))
        except _ClientLeftError:
            running.close()
            return Response(status_code=_CLIENT_LEFT)
        except BaseException:
            running.close()
            raise

        def render() -> bytes:
            return _render(running, form, frame, parts)

        # With log-probabilities an answer may have megabytes.
        is_long = plan.echo or plan.num_alternatives >= 0
        content = await asyncio.to_thread(render) if is_long else render()
        return Response(content, media_type="application/json")


async def _events(
    running: _Running,
    form: AnswerForm,
    frame: dict[str, Any],
    begin: list[list[Piece]],
    news: list[tuple[int, list[Piece]]],
    wants_usage: bool,
) -> AsyncIterator[bytes]:
    """The stream: pieces as they come, the usage if wanted, and [DONE]."""
    head = _to_json(frame)[:-1]
    try:
        first = [
            await asyncio.to_thread(_chunk, running, form, head, index, pieces, None)
            for index, pieces in enumerate(begin)
            if pieces
        ]
        opening = [
            _wrap(head, form.choice(index, form.opening, None, None))
            for index in range(len(begin))
            if form.opening
        ]
        if running.is_done and not news:
            news = [(index, []) for index in range(len(begin))]
        yield b"".join([*opening, *first, *_chunks(running, form, head, news)])
        while not running.is_done:
            chunks = _chunks(running, form, head, await running.next_pieces())
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
        usage = {"usage": running.usage(), "seed": running.plan.wanted.seed}
        yield _event({**frame, "choices": [], **usage})
    yield b"data: [DONE]\n\n"


def _chunks(
    running: _Running, form: AnswerForm, head: str, news: list[tuple[int, list[Piece]]]
) -> list[bytes]:
    """One event a token where log-probabilities are wanted, else one for all that has come."""
    wants_entries = running.plan.wants_entries
    chunks = []
    for index, pieces in news:
        reason = running.texts[index].finish_reason
        groups = [[piece] for piece in pieces] if wants_entries else [pieces]
        groups = groups or [[]]
        for number, group in enumerate(groups, start=1):
            end = reason if number == len(groups) else None
            if group or end:
                chunks.append(_chunk(running, form, head, index, group, end))
    return chunks


def _chunk(
    running: _Running,
    form: AnswerForm,
    head: str,
    index: int,
    pieces: Sequence[Piece],
    finish_reason: str | None,
) -> bytes:
    text = form.piece("".join([piece.text for piece in pieces]))
    entries = pieces if running.plan.wants_entries else None
    return _wrap(head, form.choice(index, text, entries, finish_reason))


def _wrap(head: str, choice: str) -> bytes:
    return f'data: {head},"choices":[{choice}],"usage":null}}\n\n'.encode()


def _render(
    running: _Running, form: AnswerForm, frame: dict[str, Any], parts: list[list[Piece]]
) -> bytes:
    """The whole answer; JSON is made of a choice at a time, since that keeps Python's lock."""
    choices = [
        form.choice(
            index,
            form.whole("".join(piece.text for piece in pieces)),
            pieces if running.plan.wants_entries else None,
            running.texts[index].finish_reason,
        )
        for index, pieces in enumerate(parts)
    ]
    rest = {"usage": running.usage(), "seed": running.plan.wanted.seed}
    head, tail = _to_json(frame)[:-1], _to_json(rest)[1:]
    return f'{head},"choices":[{",".join(choices)}],{tail}'.encode()


class _Running:
    """The choices of a plan while they are generated. `close` it whatever happens: rows that
    nobody reads are freed."""

    def __init__(
        self, plan: Plan, language_model: LanguageModel, scheduler: Scheduler, request: Request
    ) -> None:
        self.plan = plan
        self._language_model = language_model
        self._scheduler = scheduler
        self._client = request.scope["client_name"]
        self.texts = [
            ChoiceText(
                language_model.tokenizer,
                plan.wanted.stop,
                echo=plan.prompt_of(index).text if plan.echo else None,
                with_entries=plan.wants_entries,
            )
            for index in range(len(plan.requests))
        ]
        self._job = (
            scheduler.submit(plan.requests, self._client) if plan.wanted.max_tokens else None
        )
        if self._job is None:
            for text in self.texts:
                text.finish_reason = "length"

    @property
    def is_done(self) -> bool:
        return all(text.is_done() for text in self.texts)

    def usage(self) -> dict[str, int]:
        num_prompt = sum(len(prompt.ids) for prompt in self.plan.prompts)
        num_new = sum(text.num_tokens for text in self.texts)
        return Usage(
            prompt_tokens=num_prompt,
            completion_tokens=num_new,
            total_tokens=num_prompt + num_new,
        ).model_dump()

    async def prompt_pieces(self) -> list[list[Piece]]:
        """What each choice begins with: nothing, or its prompt where that is echoed."""
        plan, model = self.plan, self._language_model
        if not plan.echo:
            return [[] for _ in plan.requests]
        parts = []
        for text, ids in plan.prompts:
            pieces = [Piece(text)] if text else []
            if text and plan.wants_entries:

                def score(ids: tuple[int, ...] = ids) -> list[Any]:
                    return score_prompt(model.model, model.tokenizer, ids, plan.num_alternatives)

                entries = await self._scheduler.between_steps(score, self._client, self._job)
                pieces = [Piece(text[one.begin : one.end], one) for one in entries]
            parts += [pieces] * plan.num_choices
        return parts

    async def next_pieces(self) -> list[tuple[int, list[Piece]]]:
        """Wait for tokens: which choices have got more text, or have come to their end."""
        assert self._job is not None
        news: dict[int, list[Piece]] = {}
        for index, token, error in await self._job.next_events():
            text = self.texts[index]
            if text.is_done():
                continue
            if token is None:
                raise error or internal_error()
            pieces = text.push(token)
            if token.finish_reason is None and text.is_done():
                # A stop string has come, of which the engine knows nothing.
                self._scheduler.cancel([self._job.rows[index]])
            news.setdefault(index, []).extend(pieces)
        return list(news.items())

    async def collect(self, begin: list[list[Piece]]) -> list[list[Piece]]:
        """All pieces of each choice, to its end."""
        parts = [list(pieces) for pieces in begin]
        while not self.is_done:
            for index, pieces in await self.next_pieces():
                parts[index] += pieces
        return parts

    def close(self) -> None:
        """Cancel what has not come to its end."""
        rows = self._job.rows if self._job is not None else []
        unfinished = [row for row in rows if not self.texts[row.index].is_done()]
        if unfinished:
            self._scheduler.cancel(unfinished)


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


def _event(value: dict[str, Any]) -> bytes:
    return f"data: {_to_json(value)}\n\n".encode()


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
