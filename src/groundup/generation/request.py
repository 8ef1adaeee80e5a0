"""What is asked of a model and of the engine, and what the engine answers with. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple, TypedDict

from pydantic import AfterValidator, BeforeValidator, Field

from groundup.config import Seed, Settings
from groundup.errors import ConfigError
from groundup.runtime import count_of

FinishReason = Literal["stop", "length", "error"]

NO_ID = -1
"""Stands for an id where the logits were not finite."""

# Below this the text is greedy, but float32, in which it is sampled, would overflow.
_MIN_TEMPERATURE = 1e-6

Temperature = Annotated[
    float,
    Field(ge=0, le=1e6),
    AfterValidator(lambda value: value if value >= _MIN_TEMPERATURE else 0),
]
StopString = Annotated[str, Field(min_length=1)]


class Sampler(Settings):
    """How an id is sampled from logits: these rules in this order, see `sampling.sample`."""

    repetition_penalty: float = Field(default=1.0, ge=0.01, le=100)
    """Above 1, make tokens that already occur less likely; 1 is off."""

    temperature: Temperature = 1.0
    """Sampling temperature; 0 is greedy."""

    top_k: int | None = Field(default=None, ge=1, le=10**9)
    """Sample from the k most probable tokens (top-k)."""

    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample from the smallest set of tokens whose probability reaches this (top-p)."""

    min_p: float = Field(default=0.0, ge=0, le=1)
    """Remove tokens whose probability is below this fraction of the highest (min-p)."""

    @property
    def needs_history(self) -> bool:
        """Whether it depends on the ids that the text already holds."""
        return self.repetition_penalty != 1


class GenerationSettings(Sampler):
    """How to continue a prompt: the options of `LanguageModel.generate` and `groundup generate`."""

    max_tokens: int = Field(default=256, ge=0, le=10**9)
    """Maximum number of new tokens; generation also ends with the document."""

    stop: Annotated[
        tuple[StopString, ...],
        BeforeValidator(lambda stop: (stop,) if isinstance(stop, str) else stop),
    ] = ()
    """End before this text; repeat for more."""

    seed: Seed = 0
    """Random seed; of several texts, each uses the next one."""

    def sampler(self, defaults: Sampler | None = None) -> Sampler:
        """With those of the model for what was not given."""
        names = self.model_fields_set & Sampler.model_fields.keys()
        return (defaults or Sampler()).model_copy(
            update={name: getattr(self, name) for name in names}
        )


class GenerationOptions(TypedDict, total=False):
    """The same as keyword arguments, for whoever checks types."""

    repetition_penalty: float
    temperature: float
    top_k: int | None
    top_p: float
    min_p: float
    max_tokens: int
    stop: str | Sequence[str]
    seed: int


@dataclass(frozen=True)
class GenerationRequest:
    """Continue `prompt_ids` by up to `max_tokens` ids, fewer when one of `stop_ids` comes."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampler: Sampler = field(default_factory=Sampler)
    seed: int = 0
    stop_ids: frozenset[int] = frozenset()
    num_alternatives: int = -1
    """Below 0, give no log-probabilities; 0, those of the sampled ids; k, those of the k likeliest
    ids as well."""

    def check_fits(self, vocab_size: int, context_length: int) -> None:
        """Raise ConfigError for ids or a length that such a model cannot take."""
        num_tokens = len(self.prompt_ids)
        if not num_tokens or min(self.prompt_ids) < 0 or max(self.prompt_ids) >= vocab_size:
            raise ConfigError(
                f"the prompt must have ids of the model's vocabulary, 0 to {vocab_size - 1}: was "
                f"it encoded with another tokenizer?"
            )
        if num_tokens > context_length:
            raise ConfigError(
                f"the prompt has {count_of(num_tokens, 'id')}, more than the context of "
                f"{context_length}: shorten it"
            )


class NewToken(NamedTuple):
    """One new id; its log-probability and the likeliest ids' are the model's own, before any rule,
    normalized over the allowed ids.

    `finish_reason` is set on the last token of a request: "stop" where the id is one of the stop
    ids (and not part of the text), "length" where it was the last that may come, "error" where the
    model's logits were not finite (NO_ID stands for the id).
    """

    id: int
    log_probability: float | None
    alternatives: tuple[tuple[int, float], ...]
    finish_reason: FinishReason | None
