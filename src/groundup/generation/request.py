"""Generation settings, requests to the engine, and the tokens it returns. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple, TypedDict

from pydantic import AfterValidator, BeforeValidator, Field

from groundup.config import Seed, Settings
from groundup.errors import ConfigError
from groundup.runtime import count_of

FinishReason = Literal["stop", "length", "error"]

NO_ID = -1
"""Placeholder for an id if the logits were not finite."""

# A smaller temperature is greedy, but would overflow float32, in which sampling computes.
_MIN_TEMPERATURE = 1e-6

Temperature = Annotated[
    float,
    Field(ge=0, le=1e6),
    AfterValidator(lambda value: value if value >= _MIN_TEMPERATURE else 0),
]
StopString = Annotated[str, Field(min_length=1)]


class Sampler(Settings):
    """Sampling rules, applied to the logits in this order; see `sampling.sample`."""

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
        """Whether sampling depends on the ids already in the text."""
        return self.repetition_penalty != 1


class GenerationSettings(Sampler):
    """Settings of `LanguageModel.generate` and `groundup generate`."""

    max_tokens: int = Field(default=256, ge=0, le=10**9)
    """Maximum number of new tokens; generation also ends with the document."""

    stop: Annotated[
        tuple[StopString, ...],
        BeforeValidator(lambda stop: (stop,) if isinstance(stop, str) else stop),
    ] = ()
    """End before this text; repeat for more."""

    seed: Seed = 0
    """Random seed; with several texts, text i uses seed + i."""

    def sampler(self, defaults: Sampler | None = None) -> Sampler:
        """The sampling rules, with `defaults` for those that were not given."""
        names = self.model_fields_set & Sampler.model_fields.keys()
        return (defaults or Sampler()).model_copy(
            update={name: getattr(self, name) for name in names}
        )


class GenerationOptions(TypedDict, total=False):
    """`GenerationSettings` as typed keyword arguments."""

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
    """Continue `prompt_ids` by up to `max_tokens` ids, or until one of `stop_ids`."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampler: Sampler = field(default_factory=Sampler)
    seed: int = 0
    stop_ids: frozenset[int] = frozenset()
    num_alternatives: int = -1
    """Log-probabilities to return: none if negative, 0 for the sampled ids only, k for the k most
    likely ids as well."""

    def check_fits(self, vocab_size: int, context_length: int) -> None:
        """Raise ConfigError for ids or a length that such a model does not support."""
        num_tokens = len(self.prompt_ids)
        if not num_tokens or min(self.prompt_ids) < 0 or max(self.prompt_ids) >= vocab_size:
            raise ConfigError(
                f"the prompt's ids must be in the model's vocabulary, 0 to {vocab_size - 1}: was "
                f"it encoded with another tokenizer?"
            )
        if num_tokens > context_length:
            raise ConfigError(
                f"the prompt has {count_of(num_tokens, 'token')}, more than the context of "
                f"{context_length}: shorten it"
            )


class NewToken(NamedTuple):
    """One new id. Log-probabilities are the model's, before any sampling rule, normalized over the
    allowed ids.

    `finish_reason` is set on the last token of a request: "stop" for a stop id (which is not part
    of the text), "length" at the length limit, "error" if the logits were not finite (the id is
    NO_ID).
    """

    id: int
    log_probability: float | None
    alternatives: tuple[tuple[int, float], ...]
    finish_reason: FinishReason | None
