"""What a request means for a model: prompts as ids, one engine request for each choice.

Whatever the model or the server's limits do not allow is refused here, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from groundup.data.counter_random import random_uint64
from groundup.errors import ConfigError, GroundupError
from groundup.generation.chat import chat_prompt
from groundup.generation.request import GenerationRequest, GenerationSettings
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


class Prompt(NamedTuple):
    """What to continue, as ids and, if it is echoed, as text."""

    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """Choice number i continues prompt i // num_choices by request i."""

    prompts: Sequence[Prompt]
    num_choices: int
    requests: Sequence[GenerationRequest]
    wanted: GenerationSettings
    num_alternatives: int
    echo: bool

    @property
    def has_logprobs(self) -> bool:
        return self.num_alternatives >= 0


def make_plan(
    body: AnyRequest, name: str, language_model: LanguageModel, settings: ServerSettings
) -> Plan:
    """The plan, or an ApiError that says what is not possible; `name` is the model's."""
    is_chat = isinstance(body, ChatRequest)
    most = settings.max_new_tokens
    wanted = body.settings(most if is_chat else DEFAULT_MAX_TOKENS)
    if is_chat:
        # A client that chats names a ceiling, not what it needs.
        wanted = wanted.model_copy(update={"max_tokens": min(wanted.max_tokens, most)})
    if wanted.max_tokens > most:
        message = f"max_tokens is {excerpt(wanted.max_tokens)}: this server allows at most {most}"
        raise ApiError(400, message, param="max_tokens")
    prompts = _read_prompts(body, name, language_model, settings)
    context = language_model.model.config.context_length
    if is_chat and wanted.past_context == "stop":
        room = max(1, context - len(prompts[0].ids))
        wanted = wanted.model_copy(update={"max_tokens": min(wanted.max_tokens, room)})
    for prompt in prompts:
        _check_context(len(prompt.ids), wanted, context, body)
    try:
        sampler = wanted.sampler()
    except ConfigError as error:
        raise ApiError(400, str(error)) from error
    requests = [
        GenerationRequest(
            prompt_ids=prompt.ids,
            max_tokens=wanted.max_tokens,
            sampler=sampler,
            seed=seed,
            stop_ids=language_model.stop_ids,
            past_context=wanted.past_context,
            num_alternatives=body.num_alternatives,
        )
        for prompt in prompts
        for seed in _seeds_of_choices(wanted.seed, body.num_choices)
    ]
    return Plan(prompts, body.num_choices, requests, wanted, body.num_alternatives, body.echoes)


def _read_prompts(
    body: AnyRequest, name: str, language_model: LanguageModel, settings: ServerSettings
) -> list[Prompt]:
    given: Sequence[str | Sequence[int]]
    if isinstance(body, ChatRequest):
        given = [_render_chat(body, name, language_model)]
    elif body.prompt is None or isinstance(body.prompt, str):
        given = [body.prompt or ""]
    elif isinstance(body.prompt[0], int):
        given = [body.prompt]
    else:
        given = body.prompt
    limit = min(settings.max_choices, settings.client_held)
    if len(given) * body.num_choices > limit:
        raise ApiError(
            400,
            f"{count_of(len(given), 'prompt')} and n = {excerpt(body.num_choices)} ask for more "
            f"than the {limit} texts that this server generates for one request",
            param="n",
        )
    prompts = [_read_prompt(prompt, language_model, body) for prompt in given]
    num_echoed = body.num_choices * sum(len(prompt.text) for prompt in prompts if body.echoes)
    if num_echoed > settings.max_body_bytes:
        raise ApiError(
            400,
            f"the answer would repeat {num_echoed} characters of prompts, more than the "
            f"{settings.max_body_bytes} that this server sends: leave echo out",
            param="echo",
        )
    return prompts


def _render_chat(body: ChatRequest, name: str, language_model: LanguageModel) -> str:
    if language_model.tokenizer.chat_template is None:
        raise ApiError(
            400,
            f"{name} has no chat template, so it cannot chat: tune it on conversations with "
            f"`groundup tune`, or use /v1/completions",
            param="model",
            code="no_chat_template",
        )
    try:
        return chat_prompt(language_model.tokenizer, body.messages)
    except GroundupError as error:
        raise ApiError(400, str(error), param="messages") from error


def _read_prompt(
    prompt: str | Sequence[int], language_model: LanguageModel, body: AnyRequest
) -> Prompt:
    tokenizer = language_model.tokenizer
    if isinstance(prompt, str):
        ids = tokenizer.encode_to_numpy(prompt)
        context = language_model.model.config.context_length
        # Checked before they become Python integers, each of which takes as much as a line of text.
        if len(ids) > max(MAX_ELEMENTS, context):
            raise _too_long(body, len(ids), context)
        try:
            return Prompt(prompt, tuple(ids.tolist() or language_model.encode_prompt("")))
        except ConfigError as error:
            raise ApiError(400, str(error), param=body.subject_field) from error
    unknown = next((id for id in prompt if id not in tokenizer.vocab), None)
    if unknown is not None:
        last = tokenizer.vocab_size - 1
        message = f"id {excerpt(unknown)} is not in the vocabulary (ids 0 to {last})"
        raise ApiError(400, message, param="prompt")
    return Prompt(tokenizer.decode(prompt) if body.echoes else "", tuple(prompt))


def _check_context(size: int, wanted: GenerationSettings, context: int, body: AnyRequest) -> None:
    """Refuse a prompt of `size` ids that leaves no room for the answer, or cannot be scored."""
    max_tokens = wanted.max_tokens
    is_scored = body.echoes and body.num_alternatives >= 0
    if size + max_tokens <= context or (wanted.past_context == "slide" and not is_scored):
        return
    if size > context or (size == context and wanted.past_context == "stop"):
        raise _too_long(body, size, context)
    if wanted.past_context == "slide":
        return
    raise ApiError(
        400,
        f"prompt tokens ({size}) and max_tokens ({max_tokens}) together exceed the model's context "
        f"of {context}: ask for at most {context - size}, or set past_context to slide",
        param="max_tokens",
        code="context_length_exceeded",
    )


def _too_long(body: AnyRequest, size: int, context: int) -> ApiError:
    return ApiError(
        400,
        f"the {body.subject} has {count_of(size, 'token')}, but the model's context is {context} "
        f"and the answer has to fit in too: shorten the {body.subject}, or set past_context to "
        f"slide (up to {max(MAX_ELEMENTS, context)} tokens)",
        param=body.subject_field,
        code="context_length_exceeded",
    )


def _seeds_of_choices(seed: int, num_choices: int) -> list[int]:
    """The first choice has the seed itself, so its text is the one it would have alone."""
    others = random_uint64(seed, _STREAM, np.arange(1, num_choices, dtype=np.uint64))
    return [seed, *others.tolist()]
