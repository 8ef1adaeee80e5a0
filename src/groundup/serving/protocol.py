"""Request schemas: OpenAI's completions and chat completions as pydantic models, with our fields.

`make_requests` converts one to engine requests, or raises an ApiError if the model or the server's
limits do not allow it. `choices` and `completions` write the responses.
"""

import secrets
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    StrictInt,
    StrictStr,
    ValidationError,
    field_validator,
    model_validator,
)

from groundup.data.counter_random import random_uint64
from groundup.errors import ConfigError, DataError, GroundupError
from groundup.generation import LanguageModel
from groundup.generation.request import GenerationRequest, Sampler
from groundup.generation.special_ids import chat_prompt
from groundup.serving.api_errors import ApiError, invalid_request
from groundup.serving.settings import ServerSettings
from groundup.tokenizer.chat_template import check_messages

# Random stream for the seeds of choices. Never change it: samples depend on it.
_STREAM = 0x5E87

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1000

Ids = Annotated[list[StrictInt], Field(min_length=1, fail_fast=True)]
StopString = Annotated[StrictStr, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
NumLogprobs = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]
NumTokens = Annotated[int, Field(ge=1)]


def _refuse_unsupported(value: Any) -> Any:
    """Refuse fields that would change the text; empty values are accepted."""
    if value and value != {"type": "text"}:
        raise ValueError("this server does not support it: omit it")
    return value


Unsupported = Annotated[Any, AfterValidator(_refuse_unsupported)]


class Body(BaseModel):
    """A request body. Types are strict ("5" is not a number); unknown fields are errors."""

    model_config = ConfigDict(strict=True, extra="forbid")


AnyBody = TypeVar("AnyBody", bound=Body)


def parse_body(body: bytes, model: type[AnyBody]) -> AnyBody:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise invalid_request(error) from None


class StreamOptions(Body):
    """Whether a stream ends with usage. Events are never padded: obfuscation has no effect."""

    include_usage: bool | None = False
    include_obfuscation: bool | None = False


class SamplingBody(Body):
    """Model and sampling parameters; `null` means the default."""

    model: str | None = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    temperature: float | None = None
    top_p: float | None = None
    # Not OpenAI's.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    def sampler(self, defaults: Sampler) -> Sampler:
        """The sampling parameters, with the model's defaults; `Sampler` validates them."""
        given = {name: getattr(self, name) for name in Sampler.model_fields}
        given = {name: value for name, value in given.items() if value is not None}
        try:
            return Sampler(**{**defaults.model_dump(), **given})
        except ConfigError as error:
            # The message begins with the name of a field.
            raise ApiError(400, str(error), param=str(error).partition(" ")[0]) from error


class GenerationBody(SamplingBody):
    """Fields that completions and chat completions share."""

    # The field that holds the input.
    subject: ClassVar[str]
    default_max_tokens: ClassVar[int]

    max_tokens: NumTokens | None = None
    n: int | None = Field(default=None, ge=1)
    stop: (
        StopString
        | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS, fail_fast=True)]
        | None
    ) = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # Accepted and ignored.
    user: Any = None
    metadata: Any = None
    parallel_tool_calls: Any = None
    service_tier: Any = None
    store: Any = None
    presence_penalty: Unsupported = None
    frequency_penalty: Unsupported = None
    logit_bias: Unsupported = None
    suffix: Unsupported = None
    echo: Unsupported = None
    tools: Unsupported = None
    response_format: Unsupported = None

    @property
    def num_choices(self) -> int:
        return 1 if self.n is None else self.n

    @property
    def stop_strings(self) -> Sequence[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or ()


class CompletionRequest(GenerationBody):
    """A prompt to continue; without one, or with an empty string, a document is begun."""

    subject: ClassVar[str] = "prompt"
    default_max_tokens: ClassVar[int] = 16

    prompt: (
        StrictStr
        | Annotated[list[StrictStr], Field(min_length=1, fail_fast=True)]
        | Ids
        | Annotated[list[Ids], Field(min_length=1, fail_fast=True)]
        | None
    ) = None
    logprobs: NumLogprobs | None = None
    # Only n: all generated texts are returned.
    best_of: Literal[1] | None = None

    @property
    def num_alternatives(self) -> int:
        """Number of top logprobs per token; below 0, no logprobs at all."""
        return -1 if self.logprobs is None else self.logprobs


class ChatRequest(GenerationBody):
    """A conversation to answer."""

    subject: ClassVar[str] = "messages"
    # An answer may fill the rest of the context.
    default_max_tokens: ClassVar[int] = 10**9

    messages: list[Any]
    # max_completion_tokens is the newer name.
    max_tokens: NumTokens | None = Field(
        default=None, validation_alias=AliasChoices("max_completion_tokens", "max_tokens")
    )
    logprobs: bool | None = None
    top_logprobs: NumLogprobs | None = None

    @field_validator("messages", mode="before")
    @classmethod
    def _check_messages(cls, value: Any) -> Any:
        if isinstance(value, list):
            # "developer" is the newer name of the system role.
            value = [
                {**one, "role": "system"}
                if isinstance(one, dict) and one.get("role") == "developer"
                else one
                for one in value
            ]
        try:
            return check_messages(value, "the request")
        except DataError as error:
            raise ValueError(str(error)) from error

    @model_validator(mode="after")
    def _check_top_logprobs(self) -> "ChatRequest":
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        return self

    @property
    def num_alternatives(self) -> int:
        return (self.top_logprobs or 0) if self.logprobs else -1


AnyRequest = CompletionRequest | ChatRequest


def make_requests(
    body: AnyRequest, language_model: LanguageModel, settings: ServerSettings
) -> list[GenerationRequest]:
    """Return one request per choice, or raise ApiError. The default seed is random."""
    sampler = body.sampler(language_model.sampler)
    prompts = _read_prompts(body, language_model, settings)
    seed = secrets.randbits(48) if body.seed is None else body.seed % 2**64
    # The first choice has the seed itself: its text does not depend on n.
    others = np.arange(1, body.num_choices, dtype=np.uint64)
    seeds = [seed, *random_uint64(seed, _STREAM, others).tolist()]
    return [
        GenerationRequest(
            prompt_ids=prompt,
            max_tokens=min(body.max_tokens or body.default_max_tokens, settings.max_new_tokens),
            sampler=sampler,
            seed=seed,
            stop_ids=language_model.stop_ids,
            num_alternatives=body.num_alternatives,
        )
        for prompt in prompts
        for seed in seeds
    ]


def _read_prompts(
    body: AnyRequest, language_model: LanguageModel, settings: ServerSettings
) -> list[tuple[int, ...]]:
    given: Sequence[str | Sequence[int]]
    if isinstance(body, ChatRequest):
        try:
            given = [chat_prompt(language_model.tokenizer, body.messages)]
        except GroundupError as error:
            can_chat = language_model.tokenizer.chat_template is not None
            code = None if can_chat else "no_chat_template"
            raise ApiError(400, str(error), param="messages", code=code) from error
    elif body.prompt is None or isinstance(body.prompt, str):
        given = [body.prompt or ""]
    elif isinstance(body.prompt[0], int):
        given = [body.prompt]
    else:
        given = body.prompt
    limit = min(settings.max_choices, settings.client_held)
    if len(given) * body.num_choices > limit:
        message = f"this server generates at most {limit} texts per request: ask for fewer"
        raise ApiError(400, message, param="n")
    return [_read_prompt(prompt, language_model, body.subject) for prompt in given]


def _read_prompt(
    prompt: str | Sequence[int], language_model: LanguageModel, subject: str
) -> tuple[int, ...]:
    tokenizer, context = language_model.tokenizer, language_model.model.config.context_length
    ids = tokenizer.encode_to_numpy(prompt).tolist() if isinstance(prompt, str) else prompt
    try:
        ids = tuple(ids or language_model.encode_prompt(""))
        GenerationRequest(ids, 1).check_fits(tokenizer.vocab_size, context)
    except ConfigError as error:
        code = "context_length_exceeded" if len(ids) > context else None
        raise ApiError(400, str(error), param=subject, code=code) from error
    return ids
