"""What a completion request means for this model: prompts as ids, one engine request a choice.

Whatever the model or the server's limits cannot grant is refused here, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from groundup.data.counter_random import random_uint64
from groundup.errors import ConfigError, GroundupError
from groundup.generation.chat import chat_prompt
from groundup.generation.request import GenerationRequest, GenerationSettings
from groundup.runtime import count_of
from groundup.serving.api_errors import ApiError, excerpt
from groundup.serving.bodies import MAX_ELEMENTS
from groundup.serving.chat_protocol import ChatRequest
from groundup.serving.protocol import DEFAULT_MAX_TOKENS, CompletionRequest, GenerationBody

if TYPE_CHECKING:
    from groundup.generation import LanguageModel
    from groundup.serving.settings import ServerSettings

# Any number, as long as it never changes: samples depend on it.
_STREAM = 0x5E87


class Prompt(NamedTuple):
    """What to continue, as the model sees it and, where it is echoed, as text."""

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
    def wants_entries(self) -> bool:
        """Whether log-probabilities are asked for."""
        return self.num_alternatives >= 0

    def prompt_of(self, index: int) -> Prompt:
        return self.prompts[index // self.num_choices]


def make_plan(
    body: CompletionRequest | ChatRequest, language_model: LanguageModel, settings: ServerSettings
) -> Plan:
    """The plan, or an ApiError that says what cannot be granted.

    body: the request as it came.
    language_model: the model that is served; prompts are encoded by its tokenizer.
    settings: the server's limits.
    """
    if body.model is not None and body.model != settings.model_name:
        raise ApiError(
            404,
            f"model {excerpt(body.model)} does not exist here: {settings.model_name} is served",
            param="model",
            code="model_not_found",
        )
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options are only for a stream", param="stream_options")
    num_choices = 1 if body.n is None else body.n
    _check_pairs(body, num_choices)
    is_chat = isinstance(body, ChatRequest)
    wanted = body.settings(settings.max_new_tokens if is_chat else DEFAULT_MAX_TOKENS)
    if is_chat:
        # A client that chats names a ceiling, not what it needs.
        wanted = replace(wanted, max_tokens=min(wanted.max_tokens, settings.max_new_tokens))
    if wanted.max_tokens > settings.max_new_tokens:
        raise ApiError(
            400,
            f"max_tokens is {excerpt(wanted.max_tokens)}: this server generates at most "
            f"{settings.max_new_tokens}",
            param="max_tokens",
        )
    prompts = _read_prompts(body, language_model, settings, num_choices)
    context = language_model.model.config.context_length
    if is_chat and wanted.past_context == "stop":
        room = max(1, context - len(prompts[0].ids))
        wanted = replace(wanted, max_tokens=min(wanted.max_tokens, room))
    for prompt in prompts:
        _check_context(len(prompt.ids), wanted, context, body)
    try:
        sampler = wanted.sampler()
    except ConfigError as error:
        raise ApiError(400, str(error)) from error
    seeds = _seeds_of_choices(wanted.seed % 2**64, num_choices)
    requests = [
        GenerationRequest(
            prompt_ids=prompt.ids,
            max_tokens=wanted.max_tokens,
            sampler=sampler,
            seed=choice_seed,
            stop_ids=language_model.stop_ids,
            past_context=wanted.past_context,
            num_alternatives=body.num_alternatives,
        )
        for prompt in prompts
        for choice_seed in seeds
    ]
    return Plan(prompts, num_choices, requests, wanted, body.num_alternatives, body.echoes)


def _check_pairs(body: CompletionRequest | ChatRequest, num_choices: int) -> None:
    """Refuse fields that do not go together."""
    if isinstance(body, ChatRequest):
        if body.max_tokens is not None and body.max_completion_tokens is not None:
            message = "give max_completion_tokens or max_tokens, not both"
            raise ApiError(400, message, param="max_tokens")
        if body.top_logprobs is not None and not body.logprobs:
            message = "top_logprobs is given, but logprobs is not true: set it, or leave both out"
            raise ApiError(400, message, param="top_logprobs")
    elif body.best_of is not None and body.best_of != num_choices:
        raise ApiError(
            400,
            f"best_of is {excerpt(body.best_of)} and n {excerpt(num_choices)}: this server "
            f"generates no more texts than it gives; leave best_of out",
            param="best_of",
        )


def _read_prompts(
    body: CompletionRequest | ChatRequest,
    language_model: LanguageModel,
    settings: ServerSettings,
    num_choices: int,
) -> list[Prompt]:
    given: Sequence[str | Sequence[int]]
    if isinstance(body, ChatRequest):
        given = [_render_chat(body, language_model, settings)]
    elif body.prompt is None or isinstance(body.prompt, str):
        given = [body.prompt or ""]
    elif isinstance(body.prompt[0], int):
        given = [body.prompt]
    else:
        given = body.prompt
    limit = min(settings.max_choices, settings.client_held)
    if len(given) * num_choices > limit:
        raise ApiError(
            400,
            f"{count_of(len(given), 'prompt')} and n = {excerpt(num_choices)} ask for more than "
            f"the {limit} texts that this server generates for one request",
            param="n",
        )
    prompts = [_read_prompt(prompt, language_model, body) for prompt in given]
    num_echoed = num_choices * sum(len(prompt.text) for prompt in prompts if body.echoes)
    if num_echoed > settings.max_body_bytes:
        raise ApiError(
            400,
            f"the answer would repeat {num_echoed} characters of prompts, more than the "
            f"{settings.max_body_bytes} that this server sends: leave echo out",
            param="echo",
        )
    return prompts


def _render_chat(body: ChatRequest, language_model: LanguageModel, settings: ServerSettings) -> str:
    if language_model.tokenizer.chat_template is None:
        raise ApiError(
            400,
            f"{settings.model_name} has no chat template, so it cannot chat: tune it on "
            f"conversations with `groundup tune`, or ask /v1/completions",
            param="model",
            code="no_chat_template",
        )
    try:
        messages = [message.model_dump() for message in body.messages]
        return chat_prompt(language_model.tokenizer, messages)
    except GroundupError as error:
        raise ApiError(400, str(error), param="messages") from error


def _read_prompt(
    prompt: str | Sequence[int], language_model: LanguageModel, body: GenerationBody
) -> Prompt:
    tokenizer = language_model.tokenizer
    subject, field = body.subject, body.subject_field
    if isinstance(prompt, str):
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            message = f"the {subject} holds one half of a surrogate pair, which is not a character"
            raise ApiError(400, message, param=field) from error
        ids = tokenizer.encode_to_numpy(prompt)
        context = language_model.model.config.context_length
        limit = max(MAX_ELEMENTS, context)
        # Before they become Python's integers, of which each takes as much as a line of text.
        if len(ids) > limit:
            raise ApiError(
                400,
                f"the {subject} has {len(ids)} tokens, but the model's context is {context} and "
                f"this server reads at most {limit}: shorten the {subject}",
                param=field,
                code="context_length_exceeded",
            )
        try:
            return Prompt(prompt, tuple(ids.tolist() or language_model.encode_prompt("")))
        except ConfigError as error:
            raise ApiError(400, str(error), param=field) from error
    for id in prompt:
        if id not in tokenizer.vocab:
            raise ApiError(
                400,
                f"id {excerpt(id)} is not in the vocabulary (ids 0 to {tokenizer.vocab_size - 1})",
                param="prompt",
            )
    return Prompt(tokenizer.decode(prompt) if body.echoes else "", tuple(prompt))


def _check_context(
    size: int, wanted: GenerationSettings, context: int, body: GenerationBody
) -> None:
    """Refuse a prompt of `size` ids that leaves no room for the answer, or cannot be scored."""
    subject, max_tokens = body.subject, wanted.max_tokens
    if body.echoes and body.num_alternatives >= 0 and size > context:
        raise ApiError(
            400,
            f"the prompt has {count_of(size, 'token')}, more than the context of {context}, "
            f"so that they cannot be scored: shorten it, or leave echo or logprobs out",
            param="prompt",
            code="context_length_exceeded",
        )
    if wanted.past_context == "slide" or size + max_tokens <= context:
        return
    if size >= context:
        raise ApiError(
            400,
            f"the {subject} has {count_of(size, 'token')}, but the model's context is {context} "
            f"and the answer has to fit in too: shorten the {subject}, or set past_context to "
            f"slide",
            param=body.subject_field,
            code="context_length_exceeded",
        )
    raise ApiError(
        400,
        f"prompt tokens ({size}) and max_tokens ({max_tokens}) together exceed the model's context "
        f"of {context}: ask for at most {context - size}, or set past_context to slide",
        param="max_tokens",
        code="context_length_exceeded",
    )


def _seeds_of_choices(seed: int, num_choices: int) -> list[int]:
    """The first choice has the seed itself, so that its text is the one it has alone."""
    others = random_uint64(seed, _STREAM, np.arange(1, num_choices, dtype=np.uint64))
    return [seed, *others.tolist()]
