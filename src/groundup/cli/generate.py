"""`groundup generate`: let a trained model continue a prompt, several, or none."""

import json
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import Field
from tyro.conf import UseAppendAction

from groundup.cli.shared import ModelFlags
from groundup.cli.terminal import as_text
from groundup.errors import ConfigError
from groundup.generation.request import GenerationSettings, StopString

if TYPE_CHECKING:
    from groundup.generation.language_model import LanguageModel, TextPiece

# Prompt, sample and seed of the text with this index.
Label = Callable[[int], dict[str, Any]]


class Arguments(ModelFlags, GenerationSettings):
    """Generate text with a trained model, streamed as it comes."""

    prompt: str = ""
    """The text to continue; without one a document is begun."""

    prompts: str | None = None
    """A file of prompts, one a line, blank lines left out; - is standard input."""

    chat: bool = False
    """Take each prompt for a message and answer it; for models that were tuned on conversations."""

    num_samples: int = Field(1, ge=1, le=10**9)
    """How many texts to generate for each prompt."""

    json_: bool = False
    """Print one JSON object a line for each text, when it is finished."""

    stop: UseAppendAction[tuple[StopString, ...]] = ()
    """End before this text; repeat for more."""


def run(arguments: Arguments) -> None:
    """Load, ask for all texts at once, print them in order."""
    from groundup.cli.shared import find_run
    from groundup.data.counter_random import check_seed

    num_samples, first_seed = arguments.num_samples, arguments.seed
    check_seed(first_seed + num_samples - 1)
    folder = find_run(arguments.run)
    prompts = _read_prompts(arguments)
    language_model = arguments.load(folder)
    firsts = [
        language_model.request(_as_message(prompt, language_model, arguments), arguments)
        for prompt in prompts
    ]
    for first in firsts:
        language_model.check(first)
    # Made as they are needed: there may be more of them than fit into memory.
    requests = (
        replace(first, seed=first_seed + sample)
        for first in firsts
        for sample in range(num_samples)
    )
    pieces = language_model.stream_requests(requests, tuple(map(as_text, arguments.stop)))

    def label(index: int) -> dict[str, Any]:
        number, sample = divmod(index, num_samples)
        return {"prompt": prompts[number], "sample": sample, "seed": first_seed + sample}

    if arguments.json_:
        _print_json(_in_order(pieces), label)
    else:
        gap = "\n" if arguments.chat else ""
        _print_text(_in_order(pieces), label, len(prompts) * num_samples, gap)


def _read_prompts(arguments: Arguments) -> list[str]:
    if arguments.prompts is None:
        return [as_text(arguments.prompt)]
    if arguments.prompt:
        raise ConfigError("give either --prompt or --prompts, not both")
    from groundup.cli.tokenizer_encode import read_text

    # Not splitlines: a prompt may hold Unicode's other line ends.
    lines = read_text(arguments.prompts).replace("\r\n", "\n").split("\n")
    prompts = [line for line in lines if line.strip()]
    if not prompts:
        name = "standard input" if arguments.prompts == "-" else arguments.prompts
        raise ConfigError(f"{name} has no prompt: write one a line")
    return prompts


def _as_message(prompt: str, language_model: "LanguageModel", arguments: Arguments) -> str:
    if not arguments.chat:
        return prompt
    from groundup.generation.chat import chat_prompt

    return chat_prompt(language_model.tokenizer, [{"role": "user", "content": prompt}])


def _print_text(pieces: "Iterable[TextPiece]", label: Label, num_texts: int, gap: str) -> None:
    """Each text after its prompt; where there are several, each below a line that counts them."""
    shown = -1
    for index, text, finish_reason in pieces:
        if index != shown:
            shown, labels = index, label(index)
            if num_texts > 1:
                print(f"=== {index + 1} of {num_texts}, seed {labels['seed']} ===")
            sys.stdout.write(labels["prompt"] + gap)
        sys.stdout.write(text)
        if finish_reason is not None:
            sys.stdout.write("\n\n" if index + 1 < num_texts else "\n")
        sys.stdout.flush()


def _print_json(pieces: "Iterable[TextPiece]", label: Label) -> None:
    whole = ""
    for index, text, finish_reason in pieces:
        whole += text
        if finish_reason is not None:
            record = {**label(index), "text": whole, "finish_reason": finish_reason}
            print(json.dumps(record, ensure_ascii=False), flush=True)
            whole = ""


def _in_order(pieces: "Iterable[TextPiece]") -> "Iterator[TextPiece]":
    """The pieces of the first text as they come, then those of the second, and so on.

    All are generated at the same time; the ones whose turn has not come wait here.
    """
    turn = 0
    waiting: dict[int, deque[TextPiece]] = {}
    for piece in pieces:
        waiting.setdefault(piece.number, deque()).append(piece)
        while waiting.get(turn):
            first = waiting[turn].popleft()
            yield first
            if first.finish_reason is not None:
                del waiting[turn]
                turn += 1
