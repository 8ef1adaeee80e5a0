"""The wire of chat completions: a conversation and how to answer it, and the answer."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field, field_validator
from pydantic_core import PydanticCustomError

from groundup.errors import DataError
from groundup.generation.request import GenerationSettings
from groundup.serving.protocol import MAX_LOGPROBS, OUT_OF_BOUNDS, GenerationBody, Usage, refuse
from groundup.tokenizer.chat_template import Role, check_messages


class TextPart(BaseModel):
    """A part of a message, which may come in several."""

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """One turn of a conversation."""

    role: Role
    content: str | list[TextPart]


class ChatRequest(GenerationBody):
    """A conversation, and how to answer it."""

    subject: ClassVar[str] = "conversation"
    subject_field: ClassVar[str] = "messages"

    messages: list[ChatMessage] = Field(min_length=1, description="The turns so far.")
    max_tokens: int | None = Field(None, ge=0, description="The older name of the next.")
    max_completion_tokens: int | None = Field(
        None, ge=0, description="Generate at most this many; the context's end comes first."
    )
    logprobs: bool | None = Field(None, description="Tell the log-probability of each token.")
    top_logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, description="And those of so many likeliest ones."
    )

    metadata: dict[str, Any] | None = Field(None, description="Accepted; not used.")
    parallel_tool_calls: bool | None = Field(None, description="Accepted; not used.")
    service_tier: str | None = Field(None, description="Accepted; not used.")
    store: bool | None = Field(None, description="Accepted; nothing is stored.")
    tools: list[Any] | None = Field(None, description="Not supported: must be empty.")
    response_format: dict[str, Any] | None = Field(
        None, description='Only text: `{"type": "text"}`.'
    )

    @field_validator("messages", mode="before")
    @classmethod
    def _check_messages(cls, value: Any) -> Any:
        if isinstance(value, list):
            # The newer name of a system's turn.
            value = [
                {**one, "role": "system"}
                if isinstance(one, dict) and one.get("role") == "developer"
                else one
                for one in value
            ]
        try:
            return check_messages(value, "the request")
        except DataError as error:
            raise PydanticCustomError(OUT_OF_BOUNDS, "{why}", {"why": str(error)}) from error

    @field_validator("tools", "response_format")
    @classmethod
    def _refuse_more_than_text(cls, value: Any) -> Any:
        return value if value == {"type": "text"} else refuse(value)

    @property
    def num_alternatives(self) -> int:
        return (self.top_logprobs or 0) if self.logprobs else -1

    def settings(self, default_max_tokens: int) -> GenerationSettings:
        chosen = self.max_completion_tokens
        return super().settings(default_max_tokens if chosen is None else chosen)


class ChatToken(BaseModel):
    """A token, its log-probability and its bytes; the id is ours."""

    token: str
    logprob: float
    bytes: list[int]
    id: int


class ChatTokenEntry(ChatToken):
    """And the likeliest that could have come."""

    top_logprobs: list[ChatToken] = []


class ChatLogprobs(BaseModel):
    """One entry a token."""

    content: list[ChatTokenEntry] = []
    refusal: None = None


class ChatAnswer(BaseModel):
    """What the assistant says."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    """One answer."""

    index: int
    message: ChatAnswer
    logprobs: ChatLogprobs | None = None
    finish_reason: Literal["stop", "length"] | None


class ChatCompletion(BaseModel):
    """The answer; in a stream each piece of it is a `chat.completion.chunk` with a `delta`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage | None = None
    seed: int | None = Field(None, description="Ours: gives the same answers again.")
