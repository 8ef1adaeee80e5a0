"""A trained model with its tokenizer, loaded from a run folder, that continues text."""

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Unpack

import torch

from groundup.errors import CheckpointError, ConfigError
from groundup.generation.engine import Engine
from groundup.generation.loading import CheckpointName, load_run, save_run
from groundup.generation.request import (
    FinishReason,
    GenerationOptions,
    GenerationRequest,
    GenerationSettings,
    Sampler,
)
from groundup.generation.sampling import not_finite
from groundup.generation.special_ids import SpecialIds, chat_prompt, find_special_ids
from groundup.generation.text_stream import TextStream
from groundup.model import TransformerLM
from groundup.text_files import END_OF_TEXT
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.chat_template import Message

# More rows at once make each step slower and save little.
_MAX_ROWS = 64


class TextPiece(NamedTuple):
    """A piece of the text of request `number`; the last piece has a finish reason."""

    number: int
    text: str
    finish_reason: FinishReason | None


class LanguageModel:
    """Continues text: `LanguageModel.load("runs/stories").generate("Once upon a time")`."""

    def __init__(
        self,
        model: TransformerLM,
        tokenizer: Tokenizer,
        step: int | None = None,
        special_ids: SpecialIds | None = None,
        sampler: Sampler | None = None,
    ) -> None:
        """step: number of training steps, if known.
        special_ids: ids that begin and end texts; the tokenizer's <|endoftext|> by default.
        sampler: defaults for what a request does not set."""
        if model.config.vocab_size < tokenizer.vocab_size:
            raise CheckpointError(
                f"the tokenizer has {tokenizer.vocab_size} tokens, but the model only "
                f"{model.config.vocab_size}: use the tokenizer it was trained with"
            )
        self.model = model
        self.tokenizer = tokenizer
        self.step = step
        self.sampler = sampler or Sampler()
        self.special_ids = special_ids or find_special_ids(tokenizer, {})
        ends = self.special_ids.ends or find_special_ids(tokenizer, {}).ends
        self.stop_ids = frozenset(ends)
        """The ids that end a document or an assistant's turn."""
        self.begin_id = self.special_ids.begin
        """The id before a document, or None."""
        if self.begin_id is None and ends:
            # In the shards, every document but the first follows the end of another.
            self.begin_id = ends[0]
        # Creating an engine takes longer than a short text; at most one is kept for the next call.
        self._idle_engines: list[Engine] = []

    @classmethod
    def load(
        cls,
        run: str | os.PathLike[str],
        checkpoint: CheckpointName = "newest",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        model: TransformerLM | None = None,
    ) -> "LanguageModel":
        """Load a run folder's newest or best checkpoint, or that of a step.

        The device defaults to the CPU, the dtype to that of the checkpoint.

        model: the model to load the weights into, if the run was trained with custom layers.
        """
        return cls(*load_run(run, checkpoint, device, dtype, model))

    from_pretrained = load
    """Alias, as in Hugging Face libraries."""

    @property
    def num_parameters(self) -> int:
        """Number of parameters; tied ones count once."""
        return sum(one.numel() for one in self.model.parameters())

    def __repr__(self) -> str:
        config, step = self.model.config, "" if self.step is None else f", step {self.step:,}"
        return (
            f"LanguageModel({self.num_parameters:,} parameters, context {config.context_length:,}, "
            f"{self.tokenizer.vocab_size:,} tokens{step})"
        )

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Save the model to a new run folder, which every command can open but not resume."""
        parts = self.model, self.tokenizer, self.step or 0, self.special_ids
        save_run(folder, *parts, sampler=self.sampler)

    def generate(self, prompt: str = "", **settings: Unpack[GenerationOptions]) -> str:
        """Continue `prompt` up to `max_tokens`, a `stop` string, the end of the document or the end
        of the context. An empty prompt begins a document.

        settings: those of `GenerationSettings`; the run's generation.json has the defaults.
        """
        return "".join(self.stream(prompt, **settings))

    def stream(self, prompt: str = "", **settings: Unpack[GenerationOptions]) -> Iterator[str]:
        """Like `generate`, but return an iterator over pieces of whole characters. Invalid settings
        raise immediately."""
        chosen = GenerationSettings(**settings)
        pieces = self.stream_requests([self.request(prompt, chosen)], chosen.stop)
        return (piece.text for piece in pieces if piece.text)

    def chat(self, messages: Sequence[Message], **settings: Unpack[GenerationOptions]) -> str:
        """Generate the assistant's answer to a conversation; the tokenizer needs a chat template.

        messages: the turns so far: `{"role": "user", "content": "Who are you?"}`.
        """
        return "".join(self.stream_chat(messages, **settings))

    def stream_chat(
        self, messages: Sequence[Message], **settings: Unpack[GenerationOptions]
    ) -> Iterator[str]:
        """Like `chat`, but return an iterator over pieces."""
        return self.stream(chat_prompt(self.tokenizer, messages), **settings)

    def generate_many(
        self, prompts: Sequence[str], **settings: Unpack[GenerationOptions]
    ) -> list[str]:
        """Continue many prompts in batches; text i is the same as alone with `seed` + i."""
        if isinstance(prompts, str):
            raise ConfigError("generate_many takes a list of prompts: use generate for one prompt")
        first = GenerationSettings(**settings)
        requests = [
            replace(self.request(prompt, first), seed=(first.seed + index) % 2**64)
            for index, prompt in enumerate(prompts)
        ]
        texts = [""] * len(requests)
        for piece in self.stream_requests(requests, first.stop):
            texts[piece.number] += piece.text
        return texts

    def encode_prompt(self, text: str) -> list[int]:
        """Return the ids to continue: those of the text, or `begin_id` if it is empty."""
        if not isinstance(text, str):
            raise ConfigError(
                f"a prompt must be one string, not {text!r:.60}: use generate_many for several"
            )
        ids = self.tokenizer.encode(text)
        if ids:
            return ids
        if self.begin_id is None:
            raise ConfigError(
                f"the prompt is empty, and the tokenizer has no {END_OF_TEXT} to start from: give "
                f"some text"
            )
        return [self.begin_id]

    def request(self, prompt: str, settings: GenerationSettings) -> GenerationRequest:
        """Make an engine's request, without the stop strings; raise ConfigError for a prompt that
        is too long."""
        request = GenerationRequest(
            prompt_ids=tuple(self.encode_prompt(prompt)),
            max_tokens=settings.max_tokens,
            sampler=settings.sampler(self.sampler),
            seed=settings.seed,
            stop_ids=self.stop_ids,
        )
        request.check_fits(self.model.config.vocab_size, self.model.config.context_length)
        return request

    def make_engine(self, max_rows: int = 64) -> Engine:
        """Create an engine that only samples ids of the tokenizer."""
        return Engine(self.model, max_rows, self.tokenizer.vocab_size)

    def stream_requests(
        self, requests: Iterable[GenerationRequest], stop: Sequence[str] = ()
    ) -> Iterator[TextPiece]:
        """Yield pieces of text of many requests as they are generated; the last piece of each has a
        finish reason. Requests are consumed as rows become free, so their number is unlimited."""
        unread = iter(requests)
        first = list(itertools.islice(unread, _MAX_ROWS))
        num_rows = max(1, len(first))
        pending = enumerate(itertools.chain(first, unread))
        running: dict[int, tuple[int, TextStream]] = {}
        # Concurrent calls have engines of their own.
        try:
            engine = self._idle_engines.pop()
        except IndexError:
            engine = self.make_engine(num_rows)
        if engine.max_rows < num_rows:
            engine = self.make_engine(num_rows)
        try:
            while (taken := list(itertools.islice(pending, engine.num_free))) or running:
                for index, request in taken:
                    if request.max_tokens == 0:
                        yield TextPiece(index, "", "length")
                        continue
                    running[engine.add(request)] = index, TextStream(self.tokenizer, stop)
                for handle, token in engine.step():
                    index, stream = running[handle]
                    reason = token.finish_reason
                    if reason == "error":
                        raise not_finite()
                    text = "" if reason == "stop" else stream.push(token.id)
                    if stream.stopped:
                        reason = "stop"
                        engine.remove(handle)
                    if reason is not None:
                        text += stream.finish()
                        del running[handle]
                    if text or reason is not None:
                        yield TextPiece(index, text, reason)
        finally:
            engine.clear()
            self._idle_engines[:] = [engine]
