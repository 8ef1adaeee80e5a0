"""`groundup chat`: talk to a model in the terminal; a base model continues the text."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from groundup.cli.arguments import Repeated
from groundup.cli.shared import ModelFlags, find_run
from groundup.cli.terminal import as_text
from groundup.errors import ConfigError, GroundupError, did_you_mean
from groundup.files import append_json_line
from groundup.generation.request import GenerationSettings, Sampler, StopString

if TYPE_CHECKING:
    from groundup.generation.language_model import LanguageModel
    from groundup.tokenizer.chat_template import Message

_QUOTES = '"""'
_COMMANDS = {
    "/reset": "starts over",
    "/save FILE": "appends the conversation to a file that groundup tune reads",
    _QUOTES: "begins and ends a message of several lines",
    "/help": "shows these commands",
    "/quit": "exits, like Ctrl-D",
}


class Arguments(ModelFlags, GenerationSettings):
    """Chat with a trained model. Ctrl-C stops an answer, Ctrl-D exits.

    A line that ends with \\, or text between triple quotes, continues on the next line. A base
    model continues what you write.
    """

    of_run: ClassVar = Sampler.model_fields.keys()

    system: str | None = None
    """System prompt."""

    stop: Repeated[tuple[StopString, ...]] = ()
    """Stop string; repeatable."""


def run(arguments: Arguments) -> None:
    folder = find_run(arguments.run)
    talk = _Talk(arguments.load(folder), arguments)
    print(f"{folder}, step {talk.model.step or 0:,}; /help shows the commands")
    if not talk.knows_turns:
        print(
            f"this base model continues what you write; to get answers, fine-tune it: "
            f"groundup tune {folder} chats.jsonl"
        )
    for text in _read_messages():
        word, _, rest = text.strip().partition(" ")
        try:
            if word == "/quit":
                break
            if word == "/help":
                print(*(f"{name:<12}{what}" for name, what in _COMMANDS.items()), sep="\n")
            elif word == "/reset":
                talk.reset()
                print("a new conversation")
            elif word == "/save":
                talk.save(rest.strip())
            elif word[:1] == "/" and word[1:].isalpha():
                names = [name.split()[0] for name in _COMMANDS]
                print(f"there is no command {word}: {did_you_mean(word, names)}")
            elif text:
                talk.answer(text)
        except (GroundupError, OSError) as error:
            print(f"error: {error}")


class _Talk:
    """A conversation with a model."""

    def __init__(self, model: "LanguageModel", arguments: Arguments) -> None:
        self.model, self._arguments = model, arguments
        self.knows_turns = model.tokenizer.chat_template is not None
        self._num_answers = 0
        if arguments.system is not None and not self.knows_turns:
            raise ConfigError("--system is for models that were tuned on conversations")
        self.reset()

    def reset(self) -> None:
        system = self._arguments.system
        self._messages: list[Message] = []
        if system is not None:
            self._messages.append({"role": "system", "content": as_text(system)})

    def answer(self, text: str) -> None:
        """Stream the answer; Ctrl-C ends it and keeps what was printed."""
        messages: list[Message] = [*self._messages, {"role": "user", "content": text}]
        request = self.model.request(self._prompt(messages), self._arguments)
        request = replace(request, seed=(request.seed + self._num_answers) % 2**64)
        self._num_answers += 1
        said, reason = "", None
        with contextlib.suppress(KeyboardInterrupt):
            stop = tuple(map(as_text, self._arguments.stop))
            for piece in self.model.stream_requests([request], stop):
                sys.stdout.write(piece.text)
                sys.stdout.flush()
                said, reason = said + piece.text, piece.finish_reason
        is_cut = reason == "length" and self.knows_turns
        print(" … (cut at --max-tokens, or the end of the context)" if is_cut else "")
        self._messages = [*messages, {"role": "assistant", "content": said}]

    def save(self, file: str) -> None:
        """Append the messages, or a base model's text, to a JSONL file."""
        if not file or not self._messages:
            raise ConfigError("say something first, then /save FILE")
        text = "".join(one["content"] for one in self._messages)
        record = {"messages": self._messages} if self.knows_turns else {"text": text}
        append_json_line(Path(file).resolve(), record)
        print(f"added to {file}")

    def _prompt(self, messages: "list[Message]") -> str:
        """The conversation, without the oldest messages if they leave no room for an answer."""
        from groundup.generation.special_ids import chat_prompt

        tokenizer, context = self.model.tokenizer, self.model.model.config.context_length
        room = context - min(self._arguments.max_tokens, context // 4)
        if not self.knows_turns:
            ids = tokenizer.encode(text := "".join(one["content"] for one in messages))
            return text if len(ids) <= room else tokenizer.decode(ids[-room:])
        first, kept = int(messages[0]["role"] == "system"), list(messages)
        while len(tokenizer.encode(prompt := chat_prompt(tokenizer, kept))) > room:
            if len(kept) < first + 3:
                break
            del kept[first : first + 2]
        if len(kept) < len(messages):
            print("(the oldest messages no longer fit the context)")
        return prompt


def _read_messages() -> Iterator[str]:
    """Yield the messages as they are typed."""
    with contextlib.suppress(ImportError):
        # Gives `input` line editing and history.
        import readline  # noqa: F401
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            text = input("> ").rstrip("\r")
            if text.startswith(_QUOTES):
                text = text.removeprefix(_QUOTES)
                while not text.endswith(_QUOTES):
                    text += "\n" + input(". ")
                text = text.removesuffix(_QUOTES).strip("\n")
            while text.endswith("\\"):
                text = text[:-1] + "\n" + input(". ")
            yield as_text(text)
    print()
