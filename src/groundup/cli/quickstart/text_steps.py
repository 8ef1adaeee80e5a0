"""The first half of the quickstart: a corpus, a vocabulary, shards, and a sentence as ids."""

import shlex
import textwrap
import time
from typing import TYPE_CHECKING, Any

from groundup.cli.quickstart.folder import QuickstartFolder
from groundup.cli.quickstart.page import Page, quote
from groundup.cli.tables import colour_tokens, show_token
from groundup.planner.quantities import show_bytes
from groundup.runtime import count_of, format_duration

if TYPE_CHECKING:
    from groundup.cli.quickstart import Arguments
    from groundup.tokenizer import Tokenizer

SENTENCE = (
    "Once upon a time, a little fox named Ada found a shiny red kite. “Whose is it?” she asked."
)


def write_corpus(arguments: "Arguments", folder: QuickstartFolder, page: Page) -> None:
    from groundup.cli.progress import progress_bar
    from groundup.data.samples import write_sample_corpus

    page.head(
        "1  Text: little stories from a grammar",
        f"groundup data sample --megabytes {arguments.megabytes:g} --seed {arguments.seed} "
        f"--out {quote(folder.corpus)}",
    )
    wanted: dict[str, Any] = {"megabytes": arguments.megabytes, "seed": arguments.seed}
    if folder.can_keep("corpus", wanted, folder.corpus):
        page.say(f"{show_bytes(folder.corpus.stat().st_size)}, written before")
    else:
        started = time.perf_counter()
        with progress_bar("writing stories") as progress:
            corpus = write_sample_corpus(folder.corpus, **wanted, progress=progress)
        size, pace = show_bytes(corpus.num_bytes), _pace(corpus.num_bytes, started)
        page.say(f"{count_of(corpus.num_stories, 'story', 'stories')}, {size} in {pace}")
        folder.note("corpus", wanted, folder.corpus)
    with open(folder.corpus, encoding="utf-8") as file:
        page.say(textwrap.shorten(file.read(400), 160, placeholder="…"), style="italic dim")


def train_tokenizer(arguments: "Arguments", folder: QuickstartFolder, page: Page) -> "Tokenizer":
    from groundup.cli.progress import progress_bar
    from groundup.text_files import END_OF_TEXT
    from groundup.tokenizer import Tokenizer
    from groundup.tokenizer.training import train_from_files

    page.head(
        "2  A vocabulary: the most frequent pairs, merged again and again",
        f"groundup tokenizer train {quote(folder.corpus)} --vocab-size {arguments.vocab_size} "
        f"--out {quote(folder.tokenizer)}",
    )
    wanted = {"vocab_size": arguments.vocab_size}
    if folder.can_keep("tokenizer", wanted, folder.tokenizer):
        tokenizer = Tokenizer.load(folder.tokenizer)
        page.say(f"{tokenizer.vocab_size:,} tokens, learned before")
    else:
        started = time.perf_counter()
        with progress_bar("learning the vocabulary") as progress:
            tokenizer, summary = train_from_files(
                folder.corpus, arguments.vocab_size, [END_OF_TEXT], progress=progress
            )
        tokenizer.save(folder.tokenizer)
        reached = f"{summary.vocab_size_reached:,} tokens"
        if summary.ran_out_of_pairs:
            reached += " (the text ran out of pairs)"
        pace = _pace(summary.num_bytes, started)
        page.say(f"{reached}, {summary.bytes_per_token:.2f} bytes per token, in {pace}")
        folder.note("tokenizer", wanted, folder.tokenizer)
    # Some merged tokens from early to late, so that their growth shows.
    merged = range(256, tokenizer.vocab_size - len(tokenizer.special_tokens))
    shown = merged[:: max(1, len(merged) // 10)]
    tokens = ", ".join(f"{id} {show_token(tokenizer.vocab[id])}" for id in shown)
    page.say(f"some tokens by id: {tokens}")
    return tokenizer


def prepare_shards(folder: QuickstartFolder, page: Page, tokenizer: "Tokenizer") -> None:
    from groundup.cli.progress import progress_bar
    from groundup.data.prepare import prepare

    page.head(
        "3  Shards: every document as ids, ready to be mapped into memory",
        f"groundup data prepare {quote(folder.corpus)} --tokenizer {quote(folder.tokenizer)} "
        f"--out {quote(folder.shards)}",
    )
    with progress_bar("encoding") as progress:
        summary = prepare(
            [folder.corpus],
            tokenizer,
            folder.shards,
            overwrite=folder.is_fresh,
            progress=progress,
        )
    for name, split in summary.index.splits.items():
        documents = count_of(split.num_documents, "document")
        page.say(
            f"{name}: {count_of(split.num_ids, 'id')} from {documents}, "
            f"{show_bytes(split.num_ids * summary.index.id_bytes)} as {summary.index.dtype}"
        )
    if summary.outcome == "up to date":
        page.say("encoded before")
    else:
        rate = summary.num_bytes / summary.seconds / 1e6
        page.say(f"in {format_duration(summary.seconds)}, {rate:,.0f} MB/s")


def verify_shards(folder: QuickstartFolder, page: Page, tokenizer: "Tokenizer") -> None:
    from groundup.data.shards import verify
    from groundup.tokenizer.inspection import bytes_per_token

    page.head(
        "4  A check: every hash, every id",
        f"groundup data verify {quote(folder.shards)} --tokenizer {quote(folder.tokenizer)}",
    )
    started = time.perf_counter()
    summary = verify(folder.shards, tokenizer)
    text_bytes = sum(split.num_bytes for split in summary.index.splits.values())
    num_ids = sum(split.num_ids for split in summary.index.splits.values())
    page.say(
        f"sound: {num_ids:,} ids stand for {show_bytes(text_bytes)} of text, "
        f"{bytes_per_token(text_bytes, num_ids):.2f} bytes per token"
    )
    page.say(f"in {_pace(summary.num_bytes, started)}")


def show_sentence(folder: QuickstartFolder, page: Page, tokenizer: "Tokenizer") -> None:
    page.head(
        "A sentence as the model will see it",
        f"groundup tokenizer inspect {shlex.quote(SENTENCE)} --tokenizer {quote(folder.tokenizer)}",
    )
    ids = tokenizer.encode(SENTENCE)
    page.say(colour_tokens([tokenizer.vocab[id] for id in ids]))
    page.say(" ".join(map(str, ids)))


def _pace(num_bytes: int, started: float) -> str:
    seconds = max(time.perf_counter() - started, 1e-9)
    return f"{format_duration(seconds)}, {num_bytes / seconds / 1e6:,.0f} MB/s"
