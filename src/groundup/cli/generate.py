"""`groundup generate`: continue prompts with a trained model."""

import json
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from groundup.cli.arguments import Repeated
from groundup.cli.shared import ModelFlags, find_run
from groundup.cli.terminal import as_text
from groundup.errors import ConfigError
from groundup.generation.request import GenerationSettings, Sampler, StopString

if TYPE_CHECKING:
    from groundup.generation.language_model import TextPiece


class Arguments(ModelFlags, GenerationSettings):
    """Generate text with a trained model, streamed.

    Sampling defaults come from the run's generation.json.
    """

    of_run: ClassVar = Sampler.model_fields.keys()

    prompt: str = ""
    """Text to continue. Default: start a new document."""

    prompts: str | None = None
    """File with one prompt per line (blank lines are skipped); - is standard input."""

    chat: bool = False
    """Treat each prompt as a user message and answer it (tuned models only)."""

    num_samples: int = Field(default=1, ge=1, le=10**9)
    """Number of samples per prompt."""

    json_: bool = False
    """Print one JSON object per finished text."""

    stop: Repeated[tuple[StopString, ...]] = ()
    """Stop string; repeatable."""


def run(arguments: Arguments) -> None:
    from groundup.data.counter_random import check_seed
    from groundup.generation.special_ids import chat_prompt

    num_samples, first_seed = arguments.num_samples, arguments.seed
    check_seed(first_seed + num_samples - 1)
    folder = find_run(arguments.run)
    prompts = _read_prompts(arguments)
    model = arguments.load(folder)
    firsts = []
    for prompt in prompts:
        message = {"role": "user", "content": prompt}
        text = chat_prompt(model.tokenizer, [message]) if arguments.chat else prompt
        firsts.append(model.request(text, arguments))
    # A generator, because there may be more than fit into memory.
    requests = (
        replace(first, seed=first_seed + sample)
        for first in firsts
        for sample in range(num_samples)
    )
    pieces = model.stream_requests(requests, tuple(map(as_text, arguments.stop)))
    num_texts, whole, is_new = len(prompts) * num_samples, "", True
    for index, text, finish_reason in _in_order(pieces):
        number, sample = divmod(index, num_samples)
        label = {"prompt": prompts[number], "sample": sample, "seed": first_seed + sample}
        whole += text
        if not arguments.json_:
            if is_new and num_texts > 1:
                print(f"=== {index + 1} of {num_texts}, seed {label['seed']} ===")
            if is_new:
                sys.stdout.write(prompts[number] + ("\n" if arguments.chat else ""))
            sys.stdout.write(text)
        if is_new := finish_reason is not None:
            record = {**label, "text": whole, "finish_reason": finish_reason}
            end = "" if index + 1 == num_texts else "\n"
            print(json.dumps(record, ensure_ascii=False) if arguments.json_ else end)
            whole = ""
        sys.stdout.flush()


def _read_prompts(arguments: Arguments) -> list[str]:
    if arguments.prompts is None:
        return [as_text(arguments.prompt)]
    if arguments.prompt:
        raise ConfigError("give either --prompt or --prompts, not both")
    from groundup.cli.tokenizer import read_text

    # Not splitlines: a prompt may contain Unicode's other line separators.
    lines = read_text(arguments.prompts).replace("\r\n", "\n").split("\n")
    prompts = [line for line in lines if line.strip()]
    if not prompts:
        raise ConfigError(f"--prompts {arguments.prompts} has no prompt: write one per line")
    return prompts


def _in_order(pieces: "Iterable[TextPiece]") -> "Iterator[TextPiece]":
    """Stream the first text, then the second, and so on. All are generated concurrently; pieces of
    later texts wait here."""
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
