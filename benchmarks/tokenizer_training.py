"""Tokenizer training: speed and memory, ours and every installed rival.

Tools break ties differently, so vocabularies agree except for a tail of rare tokens; the result
includes the agreement. Tools that read files get the path; those that take strings get the
documents one by one, and reading them is timed, as it is for the others.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from corpora import SEPARATOR, Corpora
from machine import PeakMemory, timed
from measure import Benchmark, Json, Measure, Task, Verdict, main, short

# Ties decide many of the last tokens of a small corpus; a real error changes far more than this.
_MIN_SHARED = 0.85


def tasks(corpora: Corpora) -> Iterator[Task]:
    for name, text, vocab_size, words in (
        ("web_32k", "web", 32_000, "of English web text"),
        ("stories_10k", "stories", 10_000, "of stories"),
        ("multilingual_32k", "multilingual", 32_000, "in 139 languages"),
    ):
        if corpora.has(text):
            path = corpora.text(text)
            size = f"{short(path.stat().st_size / 1e6)} MB"
            job = {"text": str(path), "vocab_size": 1_000 if corpora.quick else vocab_size}
            measures = Measure("time", "", "s"), Measure("peak", "peak memory", "MB")
            title = f"train {vocab_size:,} tokens on {size} {words}"
            yield Task(name, title, job, RIVALS, measures, cores=2)


def work(job: Json) -> Json:
    train = _TRAINERS[job["tool"]](job["cores"])
    memory = PeakMemory()
    timing = timed(train, job["text"], job["vocab_size"])
    peak_bytes = memory.growth_bytes()
    if job["output"]:
        tokens, merges = timing.result()
        found = {
            "tokens": [token.hex() for token in tokens],
            "merges": merges and [[left.hex(), right.hex()] for left, right in merges],
        }
        Path(job["output"]).write_text(json.dumps(found))
    return {
        "seconds": {"time": timing.seconds},
        "memory_bytes": {"peak": peak_bytes},
        "num_bytes": Path(job["text"]).stat().st_size,
        "peak_bytes": peak_bytes,
    }


def compare(ours: Path, theirs: Path) -> Verdict:
    """The overlap of the two vocabularies, and the length of the merges."""
    expected, found = json.loads(ours.read_text()), json.loads(theirs.read_text())
    shared = len(set(expected["tokens"]) & set(found["tokens"])) / len(expected["tokens"])
    words = f"{shared:.1%} of the tokens shared"
    if len(found["tokens"]) != len(expected["tokens"]):
        words += f", {len(found['tokens'])} tokens to our {len(expected['tokens'])}"
    if found["merges"]:
        pairs = zip(expected["merges"], found["merges"], strict=False)
        same = next((place for place, (a, b) in enumerate(pairs) if a != b), None)
        words += ", all merges equal" if same is None else f", the first {same} merges equal"
    return Verdict(shared >= _MIN_SHARED, words)


class Trained(NamedTuple):
    """A vocabulary; `merges` is None if the tool does not expose them."""

    tokens: list[bytes]
    merges: list[tuple[bytes, bytes]] | None


# Trains when called; returns a function that extracts the result, which is not timed.
Train = Callable[[str, int], Callable[[], Trained]]


def documents_of(path: str) -> Iterator[str]:
    """Yield the documents of a file, read line by line to keep memory low."""
    lines: list[str] = []
    with open(path, encoding="utf-8", newline="") as file:
        for line in file:
            if SEPARATOR not in line:
                lines.append(line)
                continue
            first, *rest = line.split(SEPARATOR)
            lines.append(first)
            for part in rest:
                if document := "".join(lines):
                    yield document
                lines = [part]
    if document := "".join(lines):
        yield document


def _groundup(threads: int) -> Train:
    import groundup.text_files
    import groundup.tokenizer.training

    def train(path: str, vocab_size: int) -> Callable[[], Trained]:
        vocab, merges = groundup.tokenizer.training.train_bpe(
            path, vocab_size, [SEPARATOR], num_threads=threads
        )
        return lambda: Trained(list(vocab.values()), merges)

    return train


def _gigatoken(threads: int) -> Train:
    import gigatoken

    def train(path: str, vocab_size: int) -> Callable[[], Trained]:
        vocab, merges = gigatoken.train_bpe(
            path, vocab_size, [SEPARATOR], separator=SEPARATOR.encode()
        )
        return lambda: Trained(list(vocab.values()), merges)

    return train


def _tokenizers(threads: int) -> Train:
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.trainers import BpeTrainer

    from groundup.tokenizer.formats.spelling import read_spelling

    def train(path: str, vocab_size: int) -> Callable[[], Trained]:
        tokenizer = Tokenizer(BPE())
        tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
        trainer = BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[SEPARATOR],
            initial_alphabet=ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(documents_of(path), trainer)

        def tell() -> Trained:
            spelled = [word for word in tokenizer.get_vocab() if word != SEPARATOR]
            return Trained([*map(read_spelling, spelled), SEPARATOR.encode()], None)

        return tell

    return train


_TRAINERS: dict[str, Callable[[int], Train]] = {
    "groundup": _groundup,
    "gigatoken": _gigatoken,
    "tokenizers": _tokenizers,
}
RIVALS = tuple(name for name in _TRAINERS if name != "groundup")


if __name__ == "__main__":
    question = "Tokenizer training: speed and memory"
    benchmark = Benchmark("tokenizer_training", question, tasks, work, compare)
    sys.exit(main(benchmark, __file__))
