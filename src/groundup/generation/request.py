"""What is asked of the engine, and what it answers with: ids and numbers, no text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from groundup.data.counter_random import check_seed
from groundup.errors import ConfigError, did_you_mean
from groundup.generation.sampling import Sampler

PastContext = Literal["stop", "slide"]
FinishReason = Literal["stop", "length", "error"]


@dataclass(frozen=True)
class GenerationRequest:
    """Go on from `prompt_ids` by up to `max_tokens` ids, fewer when one of `stop_ids` comes.

    `past_context` says what happens at a full context: stop, or slide: forget the older half and go
    on. `num_alternatives` below 0 asks for no log-probabilities, 0 for those of the chosen ids, k
    for those of the k likeliest ids besides.
    """

    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampler: Sampler = field(default_factory=Sampler)
    seed: int = 0
    stop_ids: frozenset[int] = frozenset()
    past_context: PastContext = "stop"
    num_alternatives: int = -1

    def __post_init__(self) -> None:
        if self.max_tokens < 0:
            raise ConfigError(f"max_tokens is {self.max_tokens}; it must be 0 or more")
        if not self.prompt_ids:
            raise ConfigError("there is no id to go on from; give at least one")
        if self.past_context not in get_args(PastContext):
            hint = did_you_mean(str(self.past_context), get_args(PastContext))
            raise ConfigError(f"past_context {self.past_context!r} is no policy: {hint}")
        check_seed(self.seed)

    def check_fits(self, vocab_size: int, context_length: int) -> None:
        """Raise ConfigError for ids or a length that such a model cannot take."""
        lowest, highest = min(self.prompt_ids), max(self.prompt_ids)
        if lowest < 0 or highest >= vocab_size:
            raise ConfigError(
                f"id {lowest if lowest < 0 else highest} is outside the model's vocabulary of "
                f"{vocab_size}; was the prompt encoded with another tokenizer?"
            )
        if self.past_context == "stop" and len(self.prompt_ids) > context_length:
            raise ConfigError(
                f"the prompt has {len(self.prompt_ids)} ids, more than the context of "
                f"{context_length}: shorten it, or let past_context be slide, which goes on from "
                f"its last ids"
            )


class NewToken(NamedTuple):
    """One new id; its log-probability and the likeliest ids' are the model's own, before any rule.

    They are shares of what the writable ids have: the probabilities of all of those sum to 1.
    `finish_reason` is set on the last token of a request: "stop" where the id is one of the stop
    ids (and no part of the text), "length" where it was the last that may come, "error" where the
    model's scores were not finite, so that there is no id (NO_ID stands in its place).
    """

    id: int
    log_probability: float | None
    alternatives: tuple[tuple[int, float], ...]
    finish_reason: FinishReason | None
