"""A trained model and its tokenizer as one thing that continues text, loaded from a run folder."""

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
    """Some of the text of request number `number`; a reason with the last piece of each."""

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
        """`step` says how long the model was trained, where that is known; `special_ids` what
        begins and ends its texts, which is the tokenizer's <|endoftext|> if not given; `sampler`
        what it is sampled with where a request does not say."""
        if model.config.vocab_size < tokenizer.vocab_size:
            raise CheckpointError(
                f"the tokenizer has {tokenizer.vocab_size} tokens but the model knows "
                f"{model.config.vocab_size}: they do not belong together"
            )
        self.model = model
        self.tokenizer = tokenizer
        self.step = step
        self.sampler = sampler or Sampler()
        usual = find_special_ids(tokenizer, {})
        self.special_ids = special_ids or usual
        ends = self.special_ids.ends or usual.ends
        self.stop_ids = frozenset(ends)
        """The ids that end a document, or an assistant's turn."""
        self.begin_id = self.special_ids.begin
        """The id before a document, where there is one."""
        if self.begin_id is None and ends:
            # In the shards every document but the first follows the end of another.
            self.begin_id = ends[0]
        # Building one takes longer than a short text; at most one waits here for the next call.
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
        """The model of a run folder at its newest or best checkpoint, or at the one of a step.

        Without a device it is on the CPU, without a dtype as it was saved.

        model: what takes the weights, where the run was trained with layers of a program's own.
        """
        return cls(*load_run(run, checkpoint, device, dtype, model))

    from_pretrained = load
    """The name that other libraries have for it."""

    @property
    def num_parameters(self) -> int:
        """Tied ones count once."""
        return sum(one.numel() for one in self.model.parameters())

    def __repr__(self) -> str:
        config, step = self.model.config, "" if self.step is None else f", step {self.step:,}"
        return (
            f"LanguageModel({self.num_parameters:,} parameters, context {config.context_length:,}, "
            f"{self.tokenizer.vocab_size:,} tokens{step})"
        )

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the model as it is now as a new run folder, which every command opens; it cannot be
        resumed."""
        parts = self.model, self.tokenizer, self.step or 0, self.special_ids
        save_run(folder, *parts, sampler=self.sampler)

    def generate(self, prompt: str = "", **settings: Unpack[GenerationOptions]) -> str:
        """The text that follows `prompt`: up to `max_tokens`, one of the `stop` strings, the end of
        the document, or the end of the context. Without a prompt a document is begun.

        settings: those of `GenerationSettings`; what is not given is as the run's generation.json
            says.
        """
        return "".join(self.stream(prompt, **settings))

    def stream(self, prompt: str = "", **settings: Unpack[GenerationOptions]) -> Iterator[str]:
        """The same in pieces as they come, each of whole characters. Wrong settings raise here."""
        chosen = GenerationSettings(**settings)
        pieces = self.stream_requests([self.request(prompt, chosen)], chosen.stop)
        return (piece.text for piece in pieces if piece.text)

    def chat(self, messages: Sequence[Message], **settings: Unpack[GenerationOptions]) -> str:
        """The assistant's answer to a conversation; the tokenizer needs a chat template.

        messages: the turns so far: `{"role": "user", "content": "Who are you?"}`.
        """
        return "".join(self.stream_chat(messages, **settings))

    def stream_chat(
        self, messages: Sequence[Message], **settings: Unpack[GenerationOptions]
    ) -> Iterator[str]:
        """The same in pieces as they come."""
        return self.stream(chat_prompt(self.tokenizer, messages), **settings)

    def generate_many(
        self, prompts: Sequence[str], **settings: Unpack[GenerationOptions]
    ) -> list[str]:
        """The text after each prompt, many rows at a time; the i-th as if alone with `seed` + i."""
        if isinstance(prompts, str):
            raise ConfigError("generate_many takes a list of prompts: for a single one, generate")
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
        """The ids to continue: those of the text, or for an empty text what begins a document."""
        if not isinstance(text, str):
            raise ConfigError(
                f"a prompt must be one string, not {text!r:.60}: use generate_many for several"
            )
        ids = self.tokenizer.encode(text)
        if ids:
            return ids
        if self.begin_id is None:
            raise ConfigError(
                f"the prompt is empty and the tokenizer has no {END_OF_TEXT} to begin with: give "
                f"some text"
            )
        return [self.begin_id]

    def request(self, prompt: str, settings: GenerationSettings) -> GenerationRequest:
        """What to ask an engine, which knows no stop strings, so that it continues `prompt`; a
        ConfigError for a prompt that the model cannot take."""
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
        """An engine of the model that never samples an id beyond the tokenizer's."""
        return Engine(self.model, max_rows, self.tokenizer.vocab_size)

    def stream_requests(
        self, requests: Iterable[GenerationRequest], stop: Sequence[str] = ()
    ) -> Iterator[TextPiece]:
        """Pieces of the texts of many requests as they come; each request's last has a reason.

        Requests are taken as rows become free, so there may be any number.
        """
        unread = iter(requests)
        first = list(itertools.islice(unread, _MAX_ROWS))
        num_rows = max(1, len(first))
        waiting = enumerate(itertools.chain(first, unread))
        running: dict[int, tuple[int, TextStream]] = {}
        # Other calls may go on meanwhile, with engines of their own.
        try:
            engine = self._idle_engines.pop()
        except IndexError:
            engine = self.make_engine(num_rows)
        if engine.max_rows < num_rows:
            engine = self.make_engine(num_rows)
        try:
            while (taken := list(itertools.islice(waiting, engine.num_free))) or running:
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
