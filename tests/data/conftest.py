"""A small tokenizer, and corpora of any size."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from groundup.tokenizer import Tokenizer
from groundup.tokenizer.reference import train_bpe_reference

END = "<|endoftext|>"
TEXT = "the fox and a kite saw rain, then ran home! naïve 日本 — 😀 its the there 1984\n\n"
WORDS = TEXT.split(" ")


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    vocab, merges = train_bpe_reference(" ".join(WORDS) * 3, 300, [END])
    return Tokenizer(vocab, merges, [END])


@pytest.fixture(scope="session")
def other_tokenizer() -> Tokenizer:
    vocab, merges = train_bpe_reference(" ".join(WORDS) * 3, 290, [END])
    return Tokenizer(vocab, merges, [END])


@pytest.fixture(scope="session")
def make_documents() -> Callable[..., list[str]]:
    """`make_documents(100, seed=1)` creates documents of very different lengths."""

    def make(count: int, seed: int = 0) -> list[str]:
        random_ = random.Random(seed)
        lengths = [int(random_.paretovariate(0.9)) + random_.randrange(20) for _ in range(count)]
        return [" ".join(random_.choices(WORDS, k=min(length + 1, 3000))) for length in lengths]

    return make


@pytest.fixture
def corpus(tmp_path: Path, make_documents: Callable[..., list[str]]) -> list[Path]:
    """Two plain files of 400 documents each."""
    paths = [tmp_path / "first.txt", tmp_path / "second.txt"]
    for seed, path in enumerate(paths):
        path.write_text(END.join(make_documents(400, seed)), "utf-8")
    return paths
