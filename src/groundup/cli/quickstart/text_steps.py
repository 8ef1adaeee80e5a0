"""The first half of the quickstart: a corpus, a vocabulary, shards, and a sentence as ids."""

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groundup.cli.quickstart.page import Page, quote
from groundup.cli.tables import show_token
from groundup.planner.quantities import show_bytes
from groundup.runtime import format_duration

if TYPE_CHECKING:
    from groundup.cli.quickstart import Arguments
    from groundup.cli.quickstart.journal import Journal
    from groundup.tokenizer import Tokenizer

SENTENCE = (
    "Once upon a time, a little fox named Ada found a shiny red kite. “Whose is it?” she asked."
)


class TextSteps:
    """The steps in order; the journal knows whether the one before had to be done."""

    tokenizer: "Tokenizer"

    def __init__(self, arguments: "Arguments", page: Page, journal: "Journal") -> None:
        self._arguments = arguments
        self._page = page
        self._journal = journal
        self._corpus = arguments.folder / "stories.txt"
        self._tokenizer_file = arguments.folder / "tokenizer.json"
        self._shards = arguments.folder / "shards"

    def write_corpus(self) -> None:
        from groundup.cli.progress import progress_bar
        from groundup.data.samples import write_sample_corpus

        arguments = self._arguments
        self._page.head(
            "1  Text: little stories from a grammar",
            f"groundup data sample --megabytes {arguments.megabytes:g} --seed {arguments.seed} "
            f"--out {quote(self._corpus)}",
        )
        wanted: dict[str, Any] = {"megabytes": arguments.megabytes, "seed": arguments.seed}
        if self._journal.can_keep("corpus", wanted, self._corpus):
            self._page.say(f"{_size(self._corpus)}, written before")
        else:
            started = time.perf_counter()
            with progress_bar("writing stories") as progress:
                corpus = write_sample_corpus(self._corpus, **wanted, progress=progress)
            self._page.say(
                f"{corpus.num_stories:,} stories, {_size(self._corpus)} in "
                f"{_pace(corpus.num_bytes, started)}"
            )
            self._journal.note("corpus", wanted, self._corpus)
        with open(self._corpus, encoding="utf-8") as file:
            self._page.say(_shorten(" ".join(file.read(400).split())), style="italic dim")

    def train_tokenizer(self) -> None:
        from groundup.cli.progress import progress_bar
        from groundup.text_files import END_OF_TEXT, read_text_blocks
        from groundup.tokenizer import Tokenizer
        from groundup.tokenizer.training import train_tokenizer

        arguments = self._arguments
        self._page.head(
            "2  A vocabulary: the most frequent pairs, merged again and again",
            f"groundup tokenizer train {quote(self._corpus)} --vocab-size {arguments.vocab_size} "
            f"--out {quote(self._tokenizer_file)}",
        )
        wanted = {"vocab_size": arguments.vocab_size}
        if self._journal.can_keep("tokenizer", wanted, self._tokenizer_file):
            self.tokenizer = Tokenizer.load(self._tokenizer_file)
            self._page.say(f"{self.tokenizer.vocab_size:,} tokens, learned before")
        else:
            started = time.perf_counter()
            with progress_bar("learning the vocabulary") as progress:
                blocks = read_text_blocks([self._corpus])
                self.tokenizer, summary = train_tokenizer(
                    blocks, arguments.vocab_size, [END_OF_TEXT], progress=progress
                )
            self.tokenizer.save(self._tokenizer_file)
            reached = f"{summary.vocab_size_reached:,} tokens"
            if summary.ran_out_of_pairs:
                reached += " (the text ran out of pairs)"
            self._page.say(
                f"{reached}, {summary.bytes_per_token:.2f} bytes per token, in "
                f"{_pace(summary.num_bytes, started)}"
            )
            self._journal.note("tokenizer", wanted, self._tokenizer_file)
        self._show_vocabulary()

    def prepare_shards(self) -> None:
        from groundup.cli.progress import progress_bar
        from groundup.data.prepare import prepare

        self._page.head(
            "3  Shards: every document as ids, ready to be mapped into memory",
            f"groundup data prepare {quote(self._corpus)} --tokenizer "
            f"{quote(self._tokenizer_file)} --out {quote(self._shards)}",
        )
        with progress_bar("encoding") as progress:
            summary = prepare(
                [self._corpus],
                self.tokenizer,
                self._shards,
                overwrite=self._journal.is_fresh,
                progress=progress,
            )
        for name, split in summary.index.splits.items():
            self._page.say(
                f"{name}: {split.num_ids:,} ids from {split.num_documents:,} documents, "
                f"{show_bytes(split.num_ids * summary.index.id_bytes)} as {summary.index.dtype}"
            )
        if summary.outcome == "up to date":
            self._page.say("encoded before")
        else:
            rate = summary.num_bytes / summary.seconds / 1e6
            self._page.say(f"in {format_duration(summary.seconds)}, {rate:,.0f} MB/s")

    def verify_shards(self) -> None:
        from groundup.data.shards import verify
        from groundup.tokenizer.inspection import bytes_per_token

        self._page.head(
            "4  A check: every hash, every id",
            f"groundup data verify {quote(self._shards)} --tokenizer {quote(self._tokenizer_file)}",
        )
        started = time.perf_counter()
        summary = verify(self._shards, self.tokenizer)
        text_bytes = sum(split.num_bytes for split in summary.index.splits.values())
        num_ids = sum(split.num_ids for split in summary.index.splits.values())
        self._page.say(
            f"sound: {num_ids:,} ids stand for {show_bytes(text_bytes)} of text, "
            f"{bytes_per_token(text_bytes, num_ids):.2f} bytes per token"
        )
        self._page.say(f"in {_pace(summary.num_bytes, started)}")

    def show_sentence(self) -> None:
        self._page.head(
            "A sentence as the model will see it",
            f"groundup tokenizer inspect {shlex.quote(SENTENCE)} --tokenizer "
            f"{quote(self._tokenizer_file)}",
        )
        ids = self.tokenizer.encode(SENTENCE)
        self._page.say_tokens([self.tokenizer.vocab[id] for id in ids])
        self._page.say(" ".join(map(str, ids)))

    def _show_vocabulary(self) -> None:
        """Some merged tokens from early to late, so that their growth shows."""
        merged = range(256, self.tokenizer.vocab_size - len(self.tokenizer.special_tokens))
        step = max(1, len(merged) // 10)
        samples = [f"{id} {show_token(self.tokenizer.vocab[id])}" for id in merged[::step]]
        self._page.say("some tokens by id: " + ", ".join(samples))


def _size(path: Path) -> str:
    return show_bytes(path.stat().st_size)


def _pace(num_bytes: int, started: float) -> str:
    seconds = max(time.perf_counter() - started, 1e-9)
    return f"{format_duration(seconds)}, {num_bytes / seconds / 1e6:,.0f} MB/s"


def _shorten(text: str, length: int = 160) -> str:
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"
