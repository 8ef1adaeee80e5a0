"""What is asked of a model and of the engine, and what the engine answers with. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from groundup.data.counter_random import check_seed
from groundup.errors import ConfigError, did_you_mean
from groundup.runtime import count_of

if TYPE_CHECKING:
    from groundup.generation.sampling import Sampler

PastContext = Literal["stop", "slide"]
FinishReason = Literal["stop", "length", "error"]


def _plain_sampler() -> Sampler:
    from groundup.generation.sampling import Sampler

    return Sampler()


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """How to continue a prompt: the options of `LanguageModel.generate` and `groundup generate`.

    What each may be is checked where it is used, before anything is generated.
    """

    max_tokens: int = 256
    """Generate at most this many tokens; the end of the document usually comes first."""

    temperature: float = 1.0
    """Below 1: likelier tokens; above 1: more random; 0 always takes the likeliest token."""

    top_p: float = 1.0
    """Sample from the fewest likeliest tokens whose probabilities sum to at least this."""

    top_k: int | None = None
    """Sample from this many of the likeliest tokens."""

    min_p: float | None = None
    """Leave out tokens less than this many times as likely as the likeliest."""

    repetition_penalty: float | None = None
    """Above 1, make tokens that the text already holds less likely."""

    stop: tuple[str, ...] = ()
    """End before this text; repeat for more."""

    seed: int = 0
    """The same seed gives the same text. Of several texts, each takes the next seed."""

    past_context: PastContext = "stop"
    """At a full context stop, or slide: forget the older half of the text and continue."""

    def sampler(self) -> Sampler:
        """The rules that the settings name, in the usual order."""
        from groundup.generation.sampling import Sampler

        return Sampler.of(
            self.temperature, self.top_k, self.top_p, self.min_p, self.repetition_penalty
        )


@dataclass(frozen=True)
class GenerationRequest:
    """Continue `prompt_ids` by up to `max_tokens` ids, fewer when one of `stop_ids` comes.

    prompt_ids: what to continue, as ids.
    max_tokens: how many ids to generate at most.
    sampler: the rules by which each id is sampled.
    seed: of the random numbers; the same seed gives the same ids.
    stop_ids: the first of these ends the text.
    past_context: at a full context stop, or slide: forget the older half and continue.
    num_alternatives: below 0, give no log-probabilities; 0, those of the sampled ids; k, those of
        the k likeliest ids as well.
    """

    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampler: Sampler = field(default_factory=_plain_sampler)
    seed: int = 0
    stop_ids: frozenset[int] = frozenset()
    past_context: PastContext = "stop"
    num_alternatives: int = -1

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
        """Raise ConfigError for ids or a length that such a model cannot take.

        vocab_size: ids that the model knows.
        context_length: ids that it sees at once.
        """
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

    They are normalized over the writable ids: the probabilities of all of those sum to 1.
    `finish_reason` is set on the last token of a request: "stop" where the id is one of the stop
    ids (and not part of the text), "length" where it was the last that may come, "error" where the
    model's logits were not finite, so that no id was sampled (NO_ID stands for it).
    """

    id: int
    log_probability: float | None
    alternatives: tuple[tuple[int, float], ...]
    finish_reason: FinishReason | None
