"""`groundup generate`: let a trained model go on from a prompt, from several, or from nothing."""

import json
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tyro.conf import Positional, UseAppendAction

from groundup.cli.streams import as_text
from groundup.errors import ConfigError

if TYPE_CHECKING:
    from groundup.generation.language_model import LanguageModel, TextPiece

_MOST_SAMPLES = 10**9

Precision = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True)
class Arguments:
    """Write text with a trained model, streamed as it is written."""

    run: Positional[str]
    """The run: its folder, or its name under runs."""

    prompt: str = ""
    """The text to go on from; without one a document is begun."""

    prompts: str | None = None
    """A file of prompts, one a line, blank lines left out; - is standard input."""

    max_tokens: int = 256
    """The most tokens to write after a prompt; the end of the document comes first as a rule."""

    temperature: float = 1.0
    """Below 1 bolder, above 1 more even; 0 always takes the likeliest token."""

    top_p: float = 1.0
    """Choose among the fewest likeliest tokens whose probabilities reach this."""

    top_k: int | None = None
    """Choose among this many of the likeliest tokens."""

    min_p: float | None = None
    """Leave out tokens less than this many times as likely as the likeliest."""

    repetition_penalty: float | None = None
    """Above 1, make tokens that the text already holds less likely."""

    stop: UseAppendAction[tuple[str, ...]] = ()
    """End before this text; repeat for more."""

    num_samples: int = 1
    """How many texts to write for each prompt."""

    seed: int = 0
    """The first text of a prompt is drawn with this seed, the next with the one after it."""

    past_context: Literal["stop", "slide"] = "stop"
    """At a full context stop, or slide: forget the older half of the text and go on."""

    checkpoint: str = "newest"
    """The state of the run to write with: newest, best, or a step."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps; auto takes the fastest there is."""

    precision: Precision = "auto"
    """What weights are computed with; auto is bfloat16 where CUDA has it, else float32."""

    json: bool = False
    """Print one JSON object a line for each text, when it is finished."""


def run(arguments: Arguments) -> None:
    """Load, ask for all texts at once, print them in order."""
    from groundup.cli.runs import find_run
    from groundup.data.counter_random import check_seed
    from groundup.generation.sampling import Sampler

    if not 1 <= arguments.num_samples <= _MOST_SAMPLES:
        raise ConfigError(
            f"--num-samples is {arguments.num_samples}; it must be from 1 to {_MOST_SAMPLES}"
        )
    check_seed(arguments.seed + arguments.num_samples - 1)
    # Before anything is loaded, so that a mistake is told at once.
    sampler = Sampler.of(
        arguments.temperature,
        arguments.top_k,
        arguments.top_p,
        arguments.min_p,
        arguments.repetition_penalty,
    )
    folder = find_run(arguments.run)
    prompts = _read_prompts(arguments)
    language_model = load_to_write(
        folder, arguments.checkpoint, arguments.device, arguments.precision
    )
    firsts = [
        language_model.request(
            prompt, arguments.max_tokens, sampler, arguments.seed, arguments.past_context
        )
        for prompt in prompts
    ]
    for first in firsts:
        language_model.check(first)
    texts = _Texts(prompts, arguments.num_samples, arguments.seed)
    # Made as they are needed: there may be more of them than fit into memory.
    requests = (
        replace(first, seed=arguments.seed + sample)
        for first in firsts
        for sample in range(arguments.num_samples)
    )
    pieces = language_model.stream_requests(requests, tuple(map(as_text, arguments.stop)))
    if arguments.json:
        _print_json(texts, pieces)
    else:
        _print_text(texts, pieces)


@dataclass(frozen=True)
class _Text:
    """One text to be written."""

    prompt: str
    sample: int
    seed: int


@dataclass(frozen=True)
class _Texts:
    """All of them, in order."""

    prompts: Sequence[str]
    num_samples: int
    first_seed: int

    def __len__(self) -> int:
        return len(self.prompts) * self.num_samples

    def __getitem__(self, place: int) -> _Text:
        number, sample = divmod(place, self.num_samples)
        return _Text(self.prompts[number], sample, self.first_seed + sample)


def _read_prompts(arguments: Arguments) -> list[str]:
    if arguments.prompts is None:
        # Words of the command line that are no UTF-8 arrive as surrogates, which no text has.
        words = arguments.prompt.encode("utf-8", "surrogateescape")
        return [words.decode("utf-8", "replace")]
    if arguments.prompt:
        raise ConfigError("give either --prompt or --prompts, not both")
    from groundup.cli.tokenizer_encode import read_text

    # Not splitlines: a prompt may hold Unicode's other line ends.
    lines = read_text(arguments.prompts).replace("\r\n", "\n").split("\n")
    prompts = [line for line in lines if line.strip()]
    if not prompts:
        place = "standard input" if arguments.prompts == "-" else arguments.prompts
        raise ConfigError(f"{place} has no prompt: write one a line")
    return prompts


def load_to_write(
    folder: Path, checkpoint: str, device: str, precision: Precision
) -> "LanguageModel":
    """The model of a run on the device and in the precision that the flags ask for."""
    import torch

    from groundup.cli.evaluate import parse_checkpoint
    from groundup.config import load_settings
    from groundup.generation import LanguageModel
    from groundup.runs.config import RunConfig
    from groundup.runtime import keep_freed_memory
    from groundup.training.execution import resolve_device

    asked = {"device": device, "precision": precision}
    resolved = resolve_device(load_settings(RunConfig, overrides=asked))
    if resolved.device == "cpu":
        keep_freed_memory()
    return LanguageModel.load(
        folder,
        parse_checkpoint(checkpoint),
        device=resolved.device,
        dtype=torch.bfloat16 if resolved.precision == "bfloat16" else None,
    )


def _print_text(texts: _Texts, pieces: "Iterable[TextPiece]") -> None:
    """Each text after its prompt; where there are several, each below a line that counts them."""
    shown = -1
    for place, text, finish_reason in _in_order(pieces):
        if place != shown:
            shown = place
            if len(texts) > 1:
                print(f"=== {place + 1} of {len(texts)}, seed {texts[place].seed} ===")
            sys.stdout.write(texts[place].prompt)
        sys.stdout.write(text)
        if finish_reason is not None:
            sys.stdout.write("\n\n" if place + 1 < len(texts) else "\n")
        sys.stdout.flush()


def _print_json(texts: _Texts, pieces: "Iterable[TextPiece]") -> None:
    written = ""
    for place, text, finish_reason in _in_order(pieces):
        written += text
        if finish_reason is not None:
            record = {**asdict(texts[place]), "text": written, "finish_reason": finish_reason}
            print(json.dumps(record, ensure_ascii=False), flush=True)
            written = ""


def _in_order(pieces: "Iterable[TextPiece]") -> "Iterator[TextPiece]":
    """The pieces of the first text as they come, then those of the second, and so on.

    All are written at the same time; the ones whose turn has not come wait here.
    """
    turn = 0
    waiting: dict[int, deque[TextPiece]] = {}
    for piece in pieces:
        waiting.setdefault(piece.place, deque()).append(piece)
        while waiting.get(turn):
            first = waiting[turn].popleft()
            yield first
            if first.finish_reason is not None:
                del waiting[turn]
                turn += 1
