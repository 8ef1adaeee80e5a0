"""What a request means for a model: prompts as ids, one engine request for each choice.

Whatever the model or the server's limits do not allow is refused here, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from groundup.data.counter_random import random_uint64
from groundup.errors import ConfigError, GroundupError
from groundup.generation.request import GenerationRequest, GenerationSettings
from groundup.generation.special_ids import chat_prompt
from groundup.runtime import count_of
from groundup.serving.api_errors import ApiError, excerpt
from groundup.serving.bodies import MAX_ELEMENTS
from groundup.serving.protocol import DEFAULT_MAX_TOKENS, ChatRequest, CompletionRequest

if TYPE_CHECKING:
    from groundup.generation import LanguageModel
    from groundup.serving.settings import ServerSettings

# Any number, as long as it never changes: samples depend on it.
_STREAM = 0x5E87

AnyRequest = CompletionRequest | ChatRequest


@dataclass(frozen=True)
class Plan:
    """Request i is for choice number i."""

    prompts: Sequence[tuple[int, ...]]
    requests: Sequence[GenerationRequest]
    wanted: GenerationSettings
    has_logprobs: bool


def make_plan(body: AnyRequest, language_model: LanguageModel, settings: ServerSettings) -> Plan:
    """The plan, or an ApiError that says what is not possible."""
    is_chat = isinstance(body, ChatRequest)
    most, context = settings.max_new_tokens, language_model.model.config.context_length
    try:
        wanted = body.settings(most if is_chat else DEFAULT_MAX_TOKENS)
    except ConfigError as error:
        # The sentence begins with the name of a field.
        raise ApiError(400, str(error), param=str(error).partition(" ")[0]) from error
    if wanted.max_tokens > most and not is_chat:
        message = f"max_tokens is {excerpt(wanted.max_tokens)}: this server allows at most {most}"
        raise ApiError(400, message, param="max_tokens")
    prompts = _read_prompts(body, language_model, settings)
    if is_chat:
        # A client that chats names a ceiling, not what it needs.
        room = max(1, context - len(prompts[0])) if wanted.past_context == "stop" else most
        wanted = wanted.model_copy(update={"max_tokens": min(wanted.max_tokens, most, room)})
    for prompt in prompts:
        if wanted.past_context == "stop" and len(prompt) + wanted.max_tokens > context:
            raise _too_long(body, len(prompt), wanted.max_tokens, context)
    sampler = wanted.sampler()
    # The first choice has the seed itself, so its text is the one it would have alone.
    others = np.arange(1, body.num_choices, dtype=np.uint64)
    seeds = [wanted.seed, *random_uint64(wanted.seed, _STREAM, others).tolist()]
    requests = [
        GenerationRequest(
            prompt_ids=prompt,
            max_tokens=wanted.max_tokens,
            sampler=sampler,
            seed=seed,
            stop_ids=language_model.stop_ids,
            past_context=wanted.past_context,
            num_alternatives=body.num_alternatives,
        )
        for prompt in prompts
        for seed in seeds
    ]
    return Plan(prompts, requests, wanted, body.num_alternatives >= 0)


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
        message = f"this server generates at most {limit} texts for one request"
        raise ApiError(400, message, param="n")
    return [_read_prompt(prompt, language_model, body) for prompt in given]


def _read_prompt(
    prompt: str | Sequence[int], language_model: LanguageModel, body: AnyRequest
) -> tuple[int, ...]:
    tokenizer = language_model.tokenizer
    if isinstance(prompt, str):
        ids = tokenizer.encode_to_numpy(prompt)
        context = language_model.model.config.context_length
        # Checked before they become Python integers, each of which takes as much as a line of text.
        if len(ids) > max(MAX_ELEMENTS, context):
            raise _too_long(body, len(ids), 1, context)
        try:
            return tuple(ids.tolist() or language_model.encode_prompt(""))
        except ConfigError as error:
            raise ApiError(400, str(error), param=body.subject) from error
    unknown = next((id for id in prompt if id not in tokenizer.vocab), None)
    if unknown is not None:
        last = tokenizer.vocab_size - 1
        message = f"id {excerpt(unknown)} is not in the vocabulary (ids 0 to {last})"
        raise ApiError(400, message, param="prompt")
    return tuple(prompt)


def _too_long(body: AnyRequest, size: int, max_tokens: int, context: int) -> ApiError:
    return ApiError(
        400,
        f"the request has {count_of(size, 'token')}, which together with max_tokens "
        f"({max_tokens}) is more than the model's context of {context}: shorten it, ask for fewer, "
        f"or set past_context to slide (up to {max(MAX_ELEMENTS, context)} tokens)",
        param="max_tokens" if size < context else body.subject,
        code="context_length_exceeded",
    )
