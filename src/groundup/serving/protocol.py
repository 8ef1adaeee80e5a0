"""The wire: OpenAI's completions as pydantic models, and what we add to them.

Only here, in `chat_protocol` and in `answer_forms` do OpenAI's names appear. Types are strict ("5"
is not a number) and an unknown field is an error, as it is there. What depends on the model is
checked by `completion_plan`.
"""

from __future__ import annotations

import secrets
from dataclasses import fields
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictInt,
    StrictStr,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from groundup.errors import ConfigError
from groundup.generation.request import GenerationSettings, PastContext

DEFAULT_MAX_TOKENS = 16
OUT_OF_BOUNDS = "out_of_bounds"
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1000

Finite = Annotated[float, Field(allow_inf_nan=False)]

# What to say of a field that takes several kinds of values, instead of one complaint for each kind.
SHAPES = {
    "prompt": "it must be a text, a list of texts, a list of ids or a list of such lists",
    "stop": f"it must be a text or a list of at most {MAX_STOP_STRINGS} texts of 1 to "
    f"{MAX_STOP_CHARACTERS} characters",
}


class Body(BaseModel):
    """What a client sends. Of many mistakes only a few are looked for: each takes time to tell."""

    model_config = ConfigDict(strict=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _keep_one_unknown(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        unknown = next((name for name in values if name not in cls.model_fields), None)
        known = {name: values[name] for name in cls.model_fields if name in values}
        return known if unknown is None else {**known, unknown: None}


Ids = Annotated[list[StrictInt], Field(min_length=1, fail_fast=True)]
StopString = Annotated[StrictStr, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]


class StreamOptions(Body):
    """What a stream ends with."""

    include_usage: bool | None = False
    include_obfuscation: bool | None = Field(False, description="Accepted; nothing is padded.")


class GenerationBody(Body):
    """How to continue what is given. `null` stands for a field's default."""

    # What is continued, in words and as a field: for errors.
    subject: ClassVar[str]
    subject_field: ClassVar[str]

    model: str | None = Field(None, description="The model's name; the only one if left out.")
    max_tokens: int | None = Field(None, ge=0, description="Generate at most this many.")
    temperature: Finite | None = Field(
        None, description="0: greedy; below 1: likelier tokens; above 1: more random."
    )
    top_p: Finite | None = Field(
        None, description="Sample from the likeliest ids whose probabilities sum to this."
    )
    n: int | None = Field(None, ge=1, description="How many texts for each prompt.")
    stop: (
        StopString
        | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS, fail_fast=True)]
        | None
    ) = Field(None, description="The text ends before the first of these.")
    seed: int | None = Field(None, ge=-(2**63), lt=2**63, description="Same seed, same text.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, description="Accepted; not used.")

    presence_penalty: Finite | None = Field(None, description="Not supported: must be 0.")
    frequency_penalty: Finite | None = Field(None, description="Not supported: must be 0.")
    logit_bias: dict[str, Any] | None = Field(None, description="Not supported: must be empty.")

    top_k: int | None = Field(None, description="Ours: sample from the k likeliest ids.")
    min_p: Finite | None = Field(
        None, description="Ours: leave out ids below this fraction of the likeliest."
    )
    repetition_penalty: Finite | None = Field(
        None, description="Ours: above 1, repeated ids become less likely."
    )
    past_context: PastContext | None = Field(
        None, description="Ours: what to do when the context is full; stop if left out."
    )

    @field_validator("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    @classmethod
    def _check_rule(cls, value: Any, info: ValidationInfo) -> Any:
        # What a rule takes, the rule itself knows.
        if value is not None:
            try:
                GenerationSettings(**{str(info.field_name): value}).sampler()
            except ConfigError as error:
                raise PydanticCustomError(OUT_OF_BOUNDS, "{why}", {"why": str(error)}) from error
        return value

    @field_validator("presence_penalty", "frequency_penalty", "logit_bias")
    @classmethod
    def _refuse_each(cls, value: Any) -> Any:
        return refuse(value)

    @property
    def num_alternatives(self) -> int:
        """Likeliest ids to tell beside each token; below 0, tell no log-probabilities."""
        raise NotImplementedError

    @property
    def echoes(self) -> bool:
        """Whether the answer begins with what was given."""
        return False

    def settings(self, default_max_tokens: int) -> GenerationSettings:
        """What was asked for; what was left out has the settings' own default, but `max_tokens` the
        given one. Without a seed there is a new one each time."""
        given = {
            field.name: value
            for field in fields(GenerationSettings)
            if (value := getattr(self, field.name)) is not None
        }
        given.setdefault("max_tokens", default_max_tokens)
        given.setdefault("seed", secrets.randbits(48))
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return GenerationSettings(**{**given, "stop": stop})

    def wants_usage_chunk(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


def refuse(value: Any) -> Any:
    """The value of a field that this server does not know, if it asks for nothing."""
    # Ignoring one of these would give another text than the one asked for.
    if value:
        raise ValueError("this server does not know it: leave it out")
    return value


class CompletionRequest(GenerationBody):
    """A prompt, and how to continue it."""

    subject: ClassVar[str] = "prompt"
    subject_field: ClassVar[str] = "prompt"

    prompt: (
        StrictStr
        | Annotated[list[StrictStr], Field(min_length=1, fail_fast=True)]
        | Ids
        | Annotated[list[Ids], Field(min_length=1, fail_fast=True)]
        | None
    ) = Field(None, description="Texts or ids. Nothing, or an empty text, begins a document.")
    max_tokens: int | None = Field(None, ge=0, description=f"{DEFAULT_MAX_TOKENS} if left out.")
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    echo: bool | None = Field(None, description="Begin the answer with the prompt.")

    best_of: int | None = Field(None, ge=1, description="Only n itself.")
    suffix: str | None = Field(None, description="Not supported: must be empty.")

    @field_validator("suffix")
    @classmethod
    def _refuse_suffix(cls, value: Any) -> Any:
        return refuse(value)

    @property
    def num_alternatives(self) -> int:
        return -1 if self.logprobs is None else self.logprobs

    @property
    def echoes(self) -> bool:
        return bool(self.echo)


class Logprobs(BaseModel):
    """One entry a token: its text, its log-probability, the likeliest and itself, its offset.

    A token that is not whole characters is spelled `bytes:\\xe2\\x82`. The ids are ours.
    """

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    text_offset: list[int] = []
    token_ids: list[int] = []
    top_ids: list[list[int]] = []


class Choice(BaseModel):
    """One text."""

    index: int
    text: str
    logprobs: Logprobs | None = None
    finish_reason: Literal["stop", "length"] | None


class Usage(BaseModel):
    """Ids read and ids generated."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(BaseModel):
    """The answer, and in a stream each piece of it."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | None = None
    seed: int | None = Field(None, description="Ours: gives the same texts again.")


class ModelCard(BaseModel):
    """What is served."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "groundup"
    context_length: int
    vocab_size: int
    step: int | None
    max_new_tokens: int
    has_chat_template: bool
    prompts: list[str] = Field([], description="Beginnings that the run was sampled with.")


class ModelList(BaseModel):
    """All that is served: one model."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class Health(BaseModel):
    """Whether requests are taken, and how many are being worked on."""

    status: Literal["ok", "stopping", "failed"]
    model: str
    running: int
    waiting: int


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(BaseModel):
    """Every answer that is not a success."""

    error: ErrorDetail
