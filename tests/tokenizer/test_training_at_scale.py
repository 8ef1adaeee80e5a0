"""Training on much text: in pieces, on threads, and with words that are too long."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from groundup._native import WordCounter
from groundup.errors import TokenizerError
from groundup.tokenizer import training
from groundup.tokenizer.patterns import GPT2, find_pattern
from groundup.tokenizer.reference import split_special_tokens
from groundup.tokenizer.training import train_from_files, train_tokenizer

END = "<|end|>"


def train(
    texts: list[str], num_merges: int, **options: Any
) -> tuple[dict[int, bytes], list[tuple[bytes, bytes]]]:
    blocks = [text.encode() for text in texts]
    tokenizer, _ = train_tokenizer(blocks, 257 + num_merges, [END], **options)
    return tokenizer.vocab, tokenizer.merges


def random_words(num_words: int, seed: int) -> str:
    shuffled = random.Random(seed)
    return "".join(
        f" {''.join(shuffled.choices('abcdefgh', k=shuffled.randrange(2, 20)))}"
        for _ in range(num_words)
    )


@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_large_text_is_counted_the_same_in_pieces(
    monkeypatch: pytest.MonkeyPatch, num_threads: int
) -> None:
    # Six megabytes go to the threads in pieces, and first to the counter in steps of 64 KB.
    text = (random_words(20_000, 1) + f"\n{END}\n") * 25
    assert len(text) > 5_000_000
    expected = train([text], 300, num_threads=1)
    assert train([text], 300, num_threads=num_threads) == expected
    monkeypatch.setattr(training, "_STEP_BYTES", 1 << 16)
    assert train([text], 300, num_threads=num_threads) == expected


def test_pieces_for_threads_never_cut_a_special_token() -> None:
    # All natural cuts of this text lie inside of special tokens, or next to them.
    special_tokens = ["a b", "b\na", " the a"]
    shuffled = random.Random(0)
    pieces = ["a b", "b\na", "b\nab", " the a", "the", "a", " ", "\n", "ab", "1 2", "."]
    text = "".join(shuffled.choices(pieces, k=1_200_000))
    counter = WordCounter("gpt2", [token.encode() for token in special_tokens], 3)
    counter.add_text(text)
    words = Counter[str]()
    for piece, is_special in split_special_tokens(text, special_tokens):
        if not is_special:
            words.update(GPT2.split(piece))
    assert counter.items() == {word.encode(): count for word, count in words.items()}


def test_a_pattern_without_a_scanner_is_cut_at_blocks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = find_pattern(r"\w+ \w+|.")
    text = b"ab cd, " * 1000
    _, whole = train_tokenizer([text], 270, [], pattern=pattern)
    monkeypatch.setattr(training, "_STEP_BYTES", 100)
    _, in_steps = train_tokenizer([text], 270, [], pattern=pattern)
    assert in_steps.num_words == whole.num_words == 3


def test_progress_counts_the_bytes() -> None:
    seen: list[tuple[int, int | None]] = []
    train(["abc", "de", ""], 3, progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == [3, 5]


def test_a_word_that_takes_too_much_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "letters.txt"
    path.write_bytes(b"a word, then " + b"a" * 3_000_000)
    assert train_from_files([path], 258, [])[0].merges[:2] == [(b"a", b"a"), (b"aa", b"aa")]
    monkeypatch.setattr(training, "_LONGEST_WORD_BYTES", 1_000_000)
    with pytest.raises(TokenizerError, match="a pre-token has more than"):
        train_from_files([path], 300, [], block_bytes=1 << 16)
    with pytest.raises(TokenizerError, match="a pre-token of 3000000 bytes"):
        train(["a" * 3_000_000], 3)
