"""What is asked of a model and of the engine, and what the engine answers with. No torch."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple, get_args

from pydantic import BeforeValidator, Field

from groundup.config import Seed, Settings
from groundup.data.counter_random import check_seed
from groundup.errors import ConfigError, did_you_mean
from groundup.runtime import count_of

PastContext = Literal["stop", "slide"]
FinishReason = Literal["stop", "length", "error"]

NO_ID = -1
"""Stands for an id where the logits were not finite."""

# Outside these bounds the text is the same, but float32, in which it is sampled, would overflow.
_MIN_TEMPERATURE = 1e-6
_MAX_TEMPERATURE = 1e30
_MAX_TOP_K = 2**31 - 1
_PENALTIES = (0.01, 100)


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """How an id is sampled from logits: these rules in this order, see `sampling.sample`."""

    repetition_penalty: float = 1.0
    """Divides positive logits of ids that the text holds and multiplies negative ones; 1 is off."""
    temperature: float = 1.0
    """Divides the logits; 0, or less than a millionth, is greedy."""
    top_k: int | None = None
    """Keeps this many of the likeliest ids, the lower of equals."""
    top_p: float = 1.0
    """Keeps the fewest likeliest ids whose probabilities sum to this, the lower of equals."""
    min_p: float = 0.0
    """Keeps ids at least this many times as likely as the likeliest."""

    def __post_init__(self) -> None:
        penalty, temperature = self.repetition_penalty, self.temperature
        low, high = _PENALTIES
        has_penalty = _is_number(penalty) and low <= penalty <= high
        has_temperature = _is_number(temperature) and temperature >= 0
        has_top_p = _is_number(self.top_p) and 0 < self.top_p <= 1
        has_min_p = _is_number(self.min_p) and 0 <= self.min_p <= 1
        for name, value, is_valid, bounds in (
            ("the repetition penalty", penalty, has_penalty, f"from {low} to {high}"),
            ("the temperature", temperature, has_temperature, "0 (greedy) or more"),
            ("top-p", self.top_p, has_top_p, "more than 0 and at most 1"),
            ("min-p", self.min_p, has_min_p, "from 0 to 1"),
        ):
            if not is_valid:
                raise ConfigError(f"{name} is {value}; it must be {bounds}")
        if self.top_k is not None:
            if type(self.top_k) is not int or self.top_k < 1:
                raise ConfigError(f"top-k is {self.top_k}; it must be an integer, 1 or more")
            object.__setattr__(self, "top_k", min(self.top_k, _MAX_TOP_K))
        is_greedy = temperature < _MIN_TEMPERATURE
        clamped = 0.0 if is_greedy else min(float(temperature), _MAX_TEMPERATURE)
        object.__setattr__(self, "temperature", clamped)

    @property
    def needs_history(self) -> bool:
        """Whether it depends on the ids that the text already holds."""
        return self.repetition_penalty != 1


class GenerationSettings(Settings):
    """How to continue a prompt: the options of `LanguageModel.generate` and `groundup generate`.

    `Sampler` and `GenerationRequest` check the values.
    """

    max_tokens: int = Field(256, ge=0, le=10**9)
    """Generate at most this many tokens; the end of the document usually comes first."""

    temperature: float = Field(1.0, le=1e6)
    """Below 1: likelier tokens; above 1: more random; 0 always takes the likeliest token."""

    top_p: float = Field(1.0, le=1e6)
    """Sample from the fewest likeliest tokens whose probabilities sum to at least this."""

    top_k: int | None = Field(None, le=10**9)
    """Sample from this many of the likeliest tokens."""

    min_p: float | None = Field(None, le=1e6)
    """Leave out tokens less than this many times as likely as the likeliest."""

    repetition_penalty: float | None = Field(None, le=1e6)
    """Above 1, make tokens that the text already holds less likely."""

    stop: Annotated[
        tuple[str, ...], BeforeValidator(lambda stop: (stop,) if isinstance(stop, str) else stop)
    ] = ()
    """End before this text; repeat for more."""

    seed: Seed = 0
    """The same seed gives the same text. Of several texts, each takes the next seed."""

    past_context: PastContext = "stop"
    """At a full context stop, or slide: forget the older half of the text and continue."""

    def sampler(self) -> Sampler:
        return Sampler(
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=0.0 if self.min_p is None else self.min_p,
        )


@dataclass(frozen=True)
class GenerationRequest:
    """Continue `prompt_ids` by up to `max_tokens` ids, fewer when one of `stop_ids` comes."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampler: Sampler = field(default_factory=Sampler)
    seed: int = 0
    stop_ids: frozenset[int] = frozenset()
    past_context: PastContext = "stop"
    """At a full context stop, or slide: forget the older half and continue."""
    num_alternatives: int = -1
    """Below 0, give no log-probabilities; 0, those of the sampled ids; k, those of the k likeliest
    ids as well."""

    def __post_init__(self) -> None:
        if type(self.max_tokens) is not int or self.max_tokens < 0:
            raise ConfigError(
                f"max_tokens is {self.max_tokens!r}; it must be an integer, 0 or more"
            )
        if not self.prompt_ids:
            raise ConfigError("the prompt has no ids; give at least one")
        if self.past_context not in get_args(PastContext):
            hint = did_you_mean(str(self.past_context), get_args(PastContext))
            raise ConfigError(
                f"past_context must be stop or slide, got {self.past_context}: {hint}"
            )
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
                f"the prompt has {count_of(len(self.prompt_ids), 'id')}, more than the context of "
                f"{context_length}: shorten it, or continue its last ids with "
                f"--past-context slide"
            )


class NewToken(NamedTuple):
    """One new id; its log-probability and the likeliest ids' are the model's own, before any rule.

    They are normalized over the allowed ids: the probabilities of all of those sum to 1.
    `finish_reason` is set on the last token of a request: "stop" where the id is one of the stop
    ids (and not part of the text), "length" where it was the last that may come, "error" where the
    model's logits were not finite, so that no id was sampled (NO_ID stands for it).
    """

    id: int
    log_probability: float | None
    alternatives: tuple[tuple[int, float], ...]
    finish_reason: FinishReason | None


def _is_number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    # Integers of any length compare, but not all of them are floats.
    return -sys.float_info.max <= value <= sys.float_info.max
