"""`groundup quickstart`: from nothing to encoded shards in a few seconds, explaining each step.

Every step is one that a person could type; finished ones are kept when it runs again.
"""

import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groundup.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from groundup.tokenizer import Tokenizer

SENTENCE = (
    "Once upon a time, a little fox named Ada found a shiny red kite. “Whose is it?” she asked."
)

_COLOURS = ("black on cyan", "black on yellow", "black on green", "black on magenta")
_SETTINGS_NAME = "quickstart.json"


@dataclass(frozen=True)
class Arguments:
    """Walk from a built-in corpus to encoded shards, explaining each step."""

    folder: Path = Path("quickstart")
    """Where everything goes; delete it to begin anew."""

    megabytes: float = 20.0
    """How much text to write, in millions of bytes."""

    vocab_size: int = 4096
    """Tokens in the vocabulary."""

    seed: int = 0
    """Which stories to write."""


def run(arguments: Arguments) -> None:
    """Take the steps and print the page."""
    from rich.console import Console

    if not 0 < arguments.megabytes < float("inf"):
        raise ConfigError(f"--megabytes {arguments.megabytes:g} must be more than 0")
    if arguments.folder.exists() and not arguments.folder.is_dir():
        raise ConfigError(f"--folder {arguments.folder} is a file; name a folder")
    # Off a terminal a line is never wrapped: it may be read by another program.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 1_000_000)
    walk = _Walk(arguments, console)
    walk.write_corpus()
    walk.train_tokenizer()
    walk.prepare_shards()
    walk.verify_shards()
    walk.show_sentence()
    walk.show_what_is_next()


class _Walk:
    """The steps in order; each knows whether the one before it had to be done."""

    def __init__(self, arguments: Arguments, console: "Console") -> None:
        self._arguments = arguments
        self._console = console
        self._corpus = arguments.folder / "stories.txt"
        self._tokenizer_file = arguments.folder / "tokenizer.json"
        self._shards = arguments.folder / "shards"
        self._done = _read_settings(arguments.folder)
        self._is_fresh = False
        self._tokenizer: Tokenizer

    def write_corpus(self) -> None:
        from groundup.cli.progress import progress_bar
        from groundup.data.samples import write_sample_corpus

        arguments = self._arguments
        self._head(
            "1  Text: little stories from a grammar",
            f"groundup data sample --megabytes {arguments.megabytes:g} --seed {arguments.seed} "
            f"--out {_quote(self._corpus)}",
        )
        wanted: dict[str, Any] = {"megabytes": arguments.megabytes, "seed": arguments.seed}
        if self._can_keep("corpus", wanted, self._corpus):
            self._say(f"{_size(self._corpus)}, written before")
        else:
            started = time.perf_counter()
            with progress_bar("writing stories") as progress:
                corpus = write_sample_corpus(self._corpus, **wanted, progress=progress)
            self._say(
                f"{corpus.num_stories:,} stories, {_size(self._corpus)} in "
                f"{_pace(corpus.num_bytes, started)}"
            )
            self._note("corpus", wanted, self._corpus)
        with open(self._corpus, encoding="utf-8") as file:
            self._say(_shorten(" ".join(file.read(400).split())), style="italic dim")

    def train_tokenizer(self) -> None:
        from groundup.cli.progress import progress_bar
        from groundup.data.documents import END_OF_TEXT, read_text_blocks
        from groundup.tokenizer import Tokenizer
        from groundup.tokenizer.training import train_tokenizer

        arguments = self._arguments
        self._head(
            "2  A vocabulary: the most frequent pairs, merged again and again",
            f"groundup tokenizer train {_quote(self._corpus)} --vocab-size {arguments.vocab_size} "
            f"--out {_quote(self._tokenizer_file)}",
        )
        wanted = {"vocab_size": arguments.vocab_size}
        if self._can_keep("tokenizer", wanted, self._tokenizer_file):
            self._tokenizer = Tokenizer.load(self._tokenizer_file)
            self._say(f"{self._tokenizer.vocab_size:,} tokens, learned before")
        else:
            started = time.perf_counter()
            with progress_bar("learning the vocabulary") as progress:
                blocks = read_text_blocks([self._corpus])
                self._tokenizer, summary = train_tokenizer(
                    blocks, arguments.vocab_size, [END_OF_TEXT], progress=progress
                )
            self._tokenizer.save(self._tokenizer_file)
            reached = f"{summary.vocab_size_reached:,} tokens"
            if summary.ran_out_of_pairs:
                reached += " (the text ran out of pairs)"
            self._say(
                f"{reached}, {summary.bytes_per_token:.2f} bytes a token, in "
                f"{_pace(summary.num_bytes, started)}"
            )
            self._note("tokenizer", wanted, self._tokenizer_file)
        self._show_vocabulary()

    def prepare_shards(self) -> None:
        from groundup.cli.progress import progress_bar
        from groundup.cli.tables import show_amount, show_duration
        from groundup.data.prepare import prepare

        self._head(
            "3  Shards: every document as ids, ready to be mapped into memory",
            f"groundup data prepare {_quote(self._corpus)} --tokenizer "
            f"{_quote(self._tokenizer_file)} --out {_quote(self._shards)}",
        )
        with progress_bar("encoding") as progress:
            summary = prepare(
                [self._corpus],
                self._tokenizer,
                self._shards,
                overwrite=self._is_fresh,
                progress=progress,
            )
        for name, split in summary.index.splits.items():
            self._say(
                f"{name}: {split.num_ids:,} ids from {split.num_documents:,} documents, "
                f"{show_amount(split.num_ids * summary.index.id_bytes)} as {summary.index.dtype}"
            )
        if summary.outcome == "up to date":
            self._say("encoded before")
        else:
            rate = summary.num_bytes / summary.seconds / 1e6
            self._say(f"in {show_duration(summary.seconds)}, {rate:,.0f} MB/s")

    def verify_shards(self) -> None:
        from groundup.cli.tables import show_amount
        from groundup.data.verify import verify

        self._head(
            "4  A check: every hash, every id",
            f"groundup data verify {_quote(self._shards)} --tokenizer "
            f"{_quote(self._tokenizer_file)}",
        )
        started = time.perf_counter()
        summary = verify(self._shards, self._tokenizer)
        text_bytes = sum(split.num_bytes for split in summary.index.splits.values())
        num_ids = sum(split.num_ids for split in summary.index.splits.values())
        self._say(
            f"sound: {num_ids:,} ids stand for {show_amount(text_bytes)} of text, "
            f"{text_bytes / num_ids:.2f} bytes a token"
        )
        self._say(f"in {_pace(summary.num_bytes, started)}")

    def show_sentence(self) -> None:
        self._head(
            "A sentence as the model will see it",
            f"groundup tokenizer inspect {shlex.quote(SENTENCE)} --tokenizer "
            f"{_quote(self._tokenizer_file)}",
        )
        ids = self._tokenizer.encode(SENTENCE)
        self._say(_coloured([self._tokenizer.vocab[id] for id in ids]))
        self._say(" ".join(map(str, ids)))

    def show_what_is_next(self) -> None:
        from rich.text import Text

        self._console.print()
        self._console.print(Text("What to try next", style="bold"))
        tokenizer, corpus = _quote(self._tokenizer_file), _quote(self._corpus)
        for command in (
            f"groundup tokenizer stats {tokenizer} {corpus}",
            f"groundup tokenizer inspect 'Your own sentence.' --tokenizer {tokenizer}",
            "groundup tokenizer train YOUR_FILES --vocab-size 32000 --out my_tokenizer.json",
            "groundup data download tinystories",
            "groundup --help",
        ):
            self._console.print(Text(f"   $ {command}", style="green"), soft_wrap=True)

    def _show_vocabulary(self) -> None:
        """Some merged tokens from early to late, so that their growth shows."""
        from groundup.cli.tables import show_token

        merged = range(256, self._tokenizer.vocab_size - len(self._tokenizer.special_tokens))
        step = max(1, len(merged) // 10)
        samples = [f"{id} {show_token(self._tokenizer.vocab[id])}" for id in merged[::step]]
        self._say("some tokens by id: " + ", ".join(samples))

    def _can_keep(self, step: str, wanted: dict[str, Any], path: Path) -> bool:
        found = self._done.get(step)
        is_same = found == {**wanted, "size": path.stat().st_size if path.exists() else None}
        if not is_same:
            self._is_fresh = True
        return not self._is_fresh

    def _note(self, step: str, wanted: dict[str, Any], path: Path) -> None:
        from groundup.files import write_json_atomic

        self._done[step] = {**wanted, "size": path.stat().st_size}
        write_json_atomic(self._arguments.folder / _SETTINGS_NAME, self._done)

    def _head(self, title: str, command: str) -> None:
        from rich.text import Text

        self._console.print()
        self._console.print(Text(title, style="bold"))
        self._console.print(Text(f"   $ {command}", style="green"), soft_wrap=True)

    def _say(self, text: "str | Text", style: str = "") -> None:
        from rich.padding import Padding
        from rich.text import Text

        shown = text if isinstance(text, Text) else Text(text, style=style)
        if sys.stdout.isatty():
            self._console.print(Padding(shown, (0, 0, 0, 3)))
        else:
            self._console.print(Text("   ").append_text(shown), soft_wrap=True)


def _read_settings(folder: Path) -> dict[str, Any]:
    """What earlier runs did in the folder; nothing, if that cannot be read."""
    import json

    try:
        value = json.loads((folder / _SETTINGS_NAME).read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _coloured(tokens: list[bytes]) -> "Text":
    """Neighbouring tokens in neighbouring colours; bars between them where there are none."""
    from rich.text import Text

    line = Text()
    for place, token in enumerate(tokens):
        if place and not sys.stdout.isatty():
            line.append("|")
        line.append(token.decode(errors="replace"), style=_COLOURS[place % len(_COLOURS)])
    return line


def _quote(path: Path) -> str:
    return shlex.quote(str(path))


def _size(path: Path) -> str:
    from groundup.cli.tables import show_amount

    return show_amount(path.stat().st_size)


def _pace(num_bytes: int, started: float) -> str:
    from groundup.cli.tables import show_duration

    seconds = max(time.perf_counter() - started, 1e-9)
    return f"{show_duration(seconds)}, {num_bytes / seconds / 1e6:,.0f} MB/s"


def _shorten(text: str, length: int = 160) -> str:
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"
