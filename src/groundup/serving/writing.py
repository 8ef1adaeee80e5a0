"""The texts of one request while they are written: from the scheduler's tokens to pieces of text.

It knows nothing of HTTP but the errors to raise; `completions` makes answers of the pieces.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from groundup.errors import GroundupError
from groundup.serving.api_errors import ApiError, internal_error
from groundup.serving.choices import ChoiceWriter, Entry, Piece
from groundup.serving.prompt_scores import score_prompt
from groundup.serving.tickets import NotTakingRequestsError, QueueFullError

if TYPE_CHECKING:
    from groundup.generation import LanguageModel
    from groundup.serving.completion_plan import Plan
    from groundup.serving.scheduler import Scheduler

_LONGEST_RETRY_SECONDS = 60


class Writing:
    """The choices of a plan. `close` it whatever happens: rows nobody reads are given free."""

    def __init__(
        self, plan: Plan, scheduler: Scheduler, language_model: LanguageModel, client: str
    ) -> None:
        self.plan = plan
        self._client = client
        self._scheduler = scheduler
        self._model = language_model.model
        self._tokenizer = language_model.tokenizer
        self.writers = [
            ChoiceWriter(
                self._tokenizer,
                plan.stop,
                echo=plan.prompt_of(index).text if plan.echo else "",
                with_entries=plan.num_alternatives >= 0,
            )
            for index in range(len(plan.requests))
        ]
        try:
            self._ticket = scheduler.submit(plan.requests, client) if plan.max_tokens else None
        except Exception as error:
            raise as_api_error(error) from error
        if self._ticket is None:
            for writer in self.writers:
                writer.finish_reason = "length"

    @property
    def is_done(self) -> bool:
        return all(writer.is_done() for writer in self.writers)

    @property
    def num_new_tokens(self) -> int:
        return sum(writer.num_tokens for writer in self.writers)

    async def next_pieces(self) -> list[tuple[int, list[Piece]]]:
        """Wait for tokens: which choices have got more text, or have come to their end."""
        assert self._ticket is not None
        news: dict[int, list[Piece]] = {}
        for index, token, error in await self._ticket.next_events():
            writer = self.writers[index]
            if writer.is_done():
                continue
            if token is None:
                raise as_api_error(error or RuntimeError("neither token nor error"))
            pieces = writer.push(token)
            if token.finish_reason is None and writer.is_done():
                # A stop string has come, of which the engine knows nothing.
                self._scheduler.cancel([self._ticket.rows[index]])
            news.setdefault(index, []).extend(pieces)
        return list(news.items())

    async def prompt_pieces(self) -> list[list[Piece]]:
        """What each choice begins with: nothing, or its prompt where that is echoed."""
        plan = self.plan
        if not plan.echo:
            return [[] for _ in plan.requests]
        parts = []
        for prompt in plan.prompts:
            pieces = [Piece(prompt.text)] if prompt.text else []
            if prompt.text and plan.num_alternatives >= 0:
                ids = prompt.ids
                entries = await self._score(ids)
                pieces = [Piece(prompt.text[one.begin : one.end], one) for one in entries]
            parts += [pieces] * plan.num_choices
        return parts

    async def _score(self, ids: tuple[int, ...]) -> list[Entry]:
        def score() -> list[Entry]:
            return score_prompt(self._model, self._tokenizer, ids, self.plan.num_alternatives)

        try:
            return await self._scheduler.between_steps(score, self._client)
        except (QueueFullError, NotTakingRequestsError) as error:
            raise as_api_error(error) from error

    def close(self) -> None:
        """Cancel what has not come to its end."""
        if self._ticket is not None and not self.is_done:
            unfinished = [
                row
                for row, writer in zip(self._ticket.rows, self.writers, strict=True)
                if not writer.is_done()
            ]
            self._scheduler.cancel(unfinished)


def as_api_error(error: Exception) -> ApiError:
    """What a client is told of an error of the scheduler or the engine."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, QueueFullError):
        seconds = min(max(1, math.ceil(error.retry_seconds)), _LONGEST_RETRY_SECONDS)
        return ApiError(
            429,
            f"too many requests are waiting: try again in about {seconds} s",
            code="queue_full",
            headers={"Retry-After": str(seconds)},
        )
    if isinstance(error, NotTakingRequestsError):
        return ApiError(503, str(error), code="unavailable", headers={"Retry-After": "5"})
    if isinstance(error, GroundupError):
        return ApiError(400, str(error))
    return internal_error()
