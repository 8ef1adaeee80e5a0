"""What clients send: OpenAI's completions and chat completions as pydantic models, with our fields.

Answers are written by `choices` and `completions`. What depends on the model is checked by
`completion_plan`.
"""

from __future__ import annotations

import secrets
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, StrictInt, StrictStr, field_validator, model_validator

from groundup.errors import DataError
from groundup.generation.request import GenerationSettings, PastContext
from groundup.serving.bodies import Body
from groundup.tokenizer.chat_template import check_messages

DEFAULT_MAX_TOKENS = 16
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1000

Ids = Annotated[list[StrictInt], Field(min_length=1, fail_fast=True)]
StopString = Annotated[StrictStr, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
NumLogprobs = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]
NumTokens = Annotated[int, Field(ge=1)]


def _refuse_unsupported(value: Any) -> Any:
    """Ignoring it would give another text than the one asked for; what is empty is fine."""
    if value and value != {"type": "text"}:
        raise ValueError("this server does not support it: leave it out")
    return value


Unsupported = Annotated[Any, AfterValidator(_refuse_unsupported)]


class StreamOptions(Body):
    """What a stream ends with. Nothing is ever padded, so obfuscation has no effect."""

    include_usage: bool | None = False
    include_obfuscation: bool | None = False


class GenerationBody(Body):
    """How to continue what is given; `null` stands for a field's default.

    `GenerationSettings` checks the numbers.
    """

    # The field with what is continued.
    subject: ClassVar[str]

    model: str | None = None
    max_tokens: NumTokens | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = Field(None, ge=1)
    stop: (
        StopString
        | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS, fail_fast=True)]
        | None
    ) = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # Accepted without effect.
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
    # Not OpenAI's.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    past_context: PastContext | None = None

    @model_validator(mode="after")
    def _check_stream_options(self) -> GenerationBody:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options are only for a stream")
        return self

    @property
    def num_choices(self) -> int:
        return 1 if self.n is None else self.n

    @property
    def num_alternatives(self) -> int:
        """How many of the likeliest tokens to return with each; below 0, no log-probabilities."""
        raise NotImplementedError

    @property
    def wants_usage_chunk(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def settings(self, default_max_tokens: int) -> GenerationSettings:
        """What was asked for. Without a seed there is a new one each time."""
        given = {
            name: value
            for name in GenerationSettings.model_fields
            if (value := getattr(self, name)) is not None
        }
        given.setdefault("max_tokens", default_max_tokens)
        seed = secrets.randbits(48) if self.seed is None else self.seed % 2**64
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return GenerationSettings(**{**given, "stop": stop, "seed": seed})


class CompletionRequest(GenerationBody):
    """A prompt, and how to continue it. Nothing, or an empty text, begins a document."""

    subject: ClassVar[str] = "prompt"

    prompt: (
        StrictStr
        | Annotated[list[StrictStr], Field(min_length=1, fail_fast=True)]
        | Ids
        | Annotated[list[Ids], Field(min_length=1, fail_fast=True)]
        | None
    ) = None
    logprobs: NumLogprobs | None = None
    # Only equal to n.
    best_of: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _check_best_of(self) -> CompletionRequest:
        if self.best_of not in (None, self.num_choices):
            raise ValueError("best_of must be n, or left out: every text generated is returned")
        return self

    @property
    def num_alternatives(self) -> int:
        return -1 if self.logprobs is None else self.logprobs


class ChatRequest(GenerationBody):
    """A conversation, and how to answer it."""

    subject: ClassVar[str] = "messages"

    messages: list[Any]
    # The newer name of max_tokens.
    max_completion_tokens: NumTokens | None = None
    logprobs: bool | None = None
    top_logprobs: NumLogprobs | None = None

    @field_validator("messages", mode="before")
    @classmethod
    def _check_messages(cls, value: Any) -> Any:
        if isinstance(value, list):
            # The newer name of the system role.
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
    def _check_pairs(self) -> ChatRequest:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("max_tokens and max_completion_tokens are the same: give one")
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        return self

    @property
    def num_alternatives(self) -> int:
        return (self.top_logprobs or 0) if self.logprobs else -1

    def settings(self, default_max_tokens: int) -> GenerationSettings:
        chosen = self.max_completion_tokens
        return super().settings(default_max_tokens if chosen is None else chosen)
