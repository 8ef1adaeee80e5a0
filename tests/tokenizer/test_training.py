"""Training equals the reference, for any number of threads, blocks and order."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from oracles import BYTES, END, PATTERNS, learn

from groundup._native import WordCounter
from groundup.errors import DataError, TokenizerError
from groundup.tokenizer import training
from groundup.tokenizer.native import as_array
from groundup.tokenizer.patterns import GPT2, Pattern, find_pattern
from groundup.tokenizer.reference import (
    encode_reference,
    split_special_tokens,
    train_bpe_reference,
)
from groundup.tokenizer.training import train_from_files

Merges = list[tuple[bytes, bytes]]

# Small alphabets give ties and runs; the others give multi-byte characters and long words.
TEXTS = st.one_of(
    st.text("ab ", max_size=200),
    st.text("aA\x00\x01\xff é", max_size=100),
    st.text(max_size=60),
    st.lists(st.sampled_from(["aaaa", "abab", "ba", " ", "\n", END, "字", "'s", "11"])).map(
        "".join
    ),
    st.lists(st.sampled_from(["of ", "the ", "a", "\r\n  ", " 12345", END])).map("".join),
)
DOCUMENTS = st.lists(TEXTS, max_size=6)


def train(texts: list[str], num_merges: int, **options: Any) -> tuple[dict[int, bytes], Merges]:
    blocks = [text.encode() for text in texts]
    tokenizer, _ = learn(blocks, 257 + num_merges, [END], **options)
    return tokenizer.vocab, tokenizer.merges


def train_on_words(words: dict[bytes, int], num_merges: int) -> tuple[Merges, int, int, int]:
    counter = WordCounter(GPT2.splitter, [], 1)
    counter.add_words(list(words), list(words.values()))
    packed, num_bytes, num_symbols, num_words = counter.train(num_merges)
    tokens = list(BYTES)
    merges = []
    for left, right in as_array(packed, np.uint32).reshape(-1, 2).tolist():
        merges.append((tokens[left], tokens[right]))
        tokens.append(tokens[left] + tokens[right])
    return merges, num_bytes, num_symbols, num_words


@hypothesis.given(
    texts=DOCUMENTS,
    num_merges=st.integers(0, 60),
    num_threads=st.integers(1, 4),
    pattern=st.sampled_from([*PATTERNS, find_pattern(r"\w+ \w+|.")]),
    superbpe_from=st.none() | st.integers(1, 40),
)
@hypothesis.settings(max_examples=150)
def test_training_and_encoding_equal_the_reference(
    texts: list[str], num_merges: int, num_threads: int, pattern: Pattern, superbpe_from: int | None
) -> None:
    size, options = 257 + num_merges, {"pattern": pattern, "superbpe_from": superbpe_from}
    expected = train_bpe_reference(texts, size, [END], pattern, superbpe_from)
    assert train(texts, num_merges, num_threads=num_threads, **options) == expected
    # One block with all documents, separated by the special token.
    tokenizer, summary = learn([END.join(texts).encode()], size, [END], **options)
    assert (tokenizer.vocab, tokenizer.merges) == expected
    documents = END.join(texts).split(END)
    ids = [encode_reference(tokenizer.definition, one) for one in documents]
    assert list(map(tokenizer.encode, documents)) == ids
    num_bytes = sum(len(one.encode()) for one in documents)
    assert summary.bytes_per_token == num_bytes / max(1, sum(map(len, ids)))


def test_counts_beyond_32_bits_are_exact() -> None:
    words = {b"ab": 2**33, b"cd": 2**33 + 1, b"ef": 2**32 - 1, b"gh": 2**40, b"abx": 5}
    merges, num_bytes, num_symbols, _ = train_on_words(words, 4)
    assert merges == [(b"g", b"h"), (b"a", b"b"), (b"c", b"d"), (b"e", b"f")]
    assert num_bytes == sum(len(word) * count for word, count in words.items())
    assert num_symbols == num_bytes - sum(words.values())


def test_counts_of_a_word_add_up() -> None:
    counter = WordCounter(GPT2.splitter, [b"<>"], 2)
    counter.add_words([b"ab", b"ab", b" long word of many bytes", b"", b"zero"], [2, 3, 1, 5, 0])
    counter.add_text("ab<>ab ab")
    counter.add_text(b"ab")
    assert counter.items() == {b"ab": 8, b" ab": 1, b" long word of many bytes": 1}


def test_training_stops_if_no_pair_is_left() -> None:
    seen: list[int] = []
    blocks = [b"abab", b"", END.encode()]
    tokenizer, summary = learn(blocks, 1000, [END], progress=lambda done, _: seen.append(done))
    assert tokenizer.merges == [(b"a", b"b"), (b"ab", b"ab")]
    assert tokenizer.vocab_size == summary.vocab_size_reached == 259
    assert summary.vocab_size_requested == 1000
    assert summary.longest_tokens[:3] == (b"abab", b"ab", b"\x00")
    assert (summary.num_words, summary.bytes_per_token) == (1, 4.0)
    assert summary.num_bytes == seen[-1] == 4 + len(END)
    assert learn([b"a", b"", b"b"], 300, [])[0].merges == []


@pytest.mark.parametrize(
    ("vocab_size", "special_tokens", "options", "message"),
    [
        (255, [], {}, "vocab_size is 255"),
        (257, ["<a>", "<b>"], {}, "258"),
        (300, ["<a>", "<a>"], {}, "<a>"),
        (300, ["\ud800"], {}, "surrogate"),
        (300, [], {"num_threads": 0}, "num_threads is 0"),
        (300, [], {"superbpe_from": 0}, "superbpe_from is 0"),
        (2**63, [], {}, "64 bits"),
    ],
)
def test_invalid_training_options_are_rejected(
    vocab_size: int, special_tokens: list[str], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TokenizerError, match=message):
        train_from_files("nothing", vocab_size, special_tokens, **options)


@pytest.mark.parametrize(
    ("special_tokens", "options"),
    [
        (["<|end|>"], {}),
        ([], {}),
        # Where these occur in a text depends on where the search starts.
        (["<|", "<|end|>", "|><|", "aa"], {}),
        (["<|end|>"], {"pattern": r"\w+|\W"}),
        (["<|end|>"], {"pattern": "llama3", "superbpe_from": 60}),
        (["<|end|>"], {"errors": "skip"}),
        (["<|end|>"], {"errors": "replace"}),
    ],
)
def test_counting_in_parts_equals_counting_the_whole_text(
    special_tokens: list[str], options: dict[str, Any], tmp_path: Path
) -> None:
    random_ = random.Random(1)
    words = "the~ fox~\n\n~  ~naïve~日本~<|end|>~<|~aaa~1984~'s".split("~")
    text = "".join(random_.choices(words, k=4_000)).encode()
    (tmp_path / "a.txt").write_bytes(text + (b"\xff" if "errors" in options else b""))
    (tmp_path / "b.jsonl").write_text('{"text": "the naïve fox saw rain"}\n' * 50)
    whole, summary = train_from_files(tmp_path, 400, special_tokens, **options)
    assert whole.lineage["trained_on"].get("superbpe_from") == options.get("superbpe_from")
    for part_bytes in (100, 1_000, 7_777, 1 << 20):
        parts, counted = train_from_files(
            tmp_path, 400, special_tokens, engine=map, part_bytes=part_bytes, **options
        )
        assert parts == whole
        assert counted.num_bytes == summary.num_bytes


def test_pieces_for_threads_never_split_a_special_token() -> None:
    # Three pieces. All natural cuts of this text are inside special tokens or next to them.
    special_tokens = ["a b", "b\na", " the a", END]
    pieces = ["a b", "b\na", "b\nab", " the a", "the", "a", " ", "\n", "ab", "1 2", "."]
    text = "".join(random.Random(0).choices(pieces, k=300_000)) + END
    words = Counter[str]()
    for piece, is_special in split_special_tokens(text, special_tokens):
        if not is_special:
            words.update(GPT2.split(piece))
    for num_threads in (1, 3):
        counter = WordCounter(
            GPT2.splitter, [token.encode() for token in special_tokens], num_threads
        )
        counter.add_text(text * 4)
        assert counter.items() == {word.encode(): 4 * count for word, count in words.items()}


def test_a_word_that_needs_too_much_memory_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "letters.txt"
    path.write_bytes(b"a word, then " + b"a" * 3_000_000)
    assert train_from_files([path], 258, [])[0].merges[:2] == [(b"a", b"a"), (b"aa", b"aa")]
    monkeypatch.setattr(training, "_MAX_WORD_BYTES", 1_000_000)
    with pytest.raises(DataError, match="pre-token"):
        train_from_files([path], 300, [], block_bytes=1 << 16)
    with pytest.raises(TokenizerError, match="3000000 bytes"):
        train(["a" * 3_000_000], 3)
