"""Text made to be slow: it ends soon, and has the ids tiktoken gives it.

Quadratic work on a megabyte would take minutes. What does not end is stopped with a traceback;
nothing here measures time.
"""

import faulthandler
import sys
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from groundup.tokenizer import Tokenizer
from groundup.tokenizer.definition import TokenizerDefinition
from groundup.tokenizer.patterns import CL100K, GPT2, LLAMA3, O200K, QWEN2, Pattern, find_pattern
from groundup.tokenizer.training import train_tokenizer

MEGABYTE = 1_000_000
PATTERNS = {pattern.name: pattern for pattern in (GPT2, CL100K, LLAMA3, QWEN2, O200K)}

TEXTS = {
    "one letter": "a" * MEGABYTE,
    "one space": " " * MEGABYTE,
    "spaces and a word": " " * MEGABYTE + "word",
    "one newline": "\n" * MEGABYTE,
    "spaces and newlines": " \n" * (MEGABYTE // 2) + "x",
    "newlines and spaces": ("\n" + " " * 999) * (MEGABYTE // 1000) + "x",
    "wide spaces": "\u3000" * (MEGABYTE // 3) + "x",
    "apostrophes": "'" * MEGABYTE,
    "contractions": "'s" * (MEGABYTE // 2),
    "halves of contractions": "'l" * (MEGABYTE // 2),
    "emoji": "😀" * (MEGABYTE // 4),
    "joined emoji": "👩\u200d" * (MEGABYTE // 7),
    "one ideograph": "字" * (MEGABYTE // 3),
    "combining marks": "e" + "\u0301" * (MEGABYTE // 2),
    "letters and marks": "e\u0301" * (MEGABYTE // 3),
    "one digit": "7" * MEGABYTE,
    "capitals after an ideograph": "字" + "A" * MEGABYTE,
    "capitals and ideographs": "A字" * (MEGABYTE // 4) + "B" * 1000,
    "a mark before capitals": ("\u0301" + "A" * 999) * (MEGABYTE // 1000),
    "slashes": "/" * MEGABYTE + "\n",
    "all control characters": "".join(map(chr, range(32))) * (MEGABYTE // 32),
    "zeros": "\x00" * MEGABYTE,
    "one line of four megabytes": "the quick brown fox, it's 123! " * (4 * MEGABYTE // 31),
    "one word of four megabytes": "abracadabra" * (4 * MEGABYTE // 11),
}


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    assert sys.__stderr__ is not None
    faulthandler.dump_traceback_later(120, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


@cache
def learned() -> Tokenizer:
    """Merges for all of the hostile texts, across pre-tokens too, so that long words stay busy."""
    blocks = [text[:2000].encode() for text in TEXTS.values()]
    return train_tokenizer(blocks, 1500, [], pattern=find_pattern(r"(?s).+"))[0]


def make_tokenizer(pattern: Pattern) -> Tokenizer:
    return Tokenizer.from_definition(
        TokenizerDefinition(learned().vocab, learned().merges, {}, pattern)
    )


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("name", PATTERNS)
def test_hostile_text_is_encoded_and_comes_back(name: str, kind: str) -> None:
    tokenizer = make_tokenizer(PATTERNS[name])
    text = TEXTS[kind]
    ids = tokenizer.encode_to_numpy(text)
    assert tokenizer.decode(ids) == text
    assert np.array_equal(tokenizer.encode_batch([text], 2)[0], ids)


@pytest.mark.parametrize("kind", TEXTS)
def test_hostile_text_has_the_ids_of_tiktoken(kind: str) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    tokenizer = make_tokenizer(GPT2)
    ranks = {token: id for id, token in tokenizer.vocab.items()}
    oracle = tiktoken.Encoding(
        "oracle", pat_str=GPT2.stages[0], mergeable_ranks=ranks, special_tokens={}
    )
    # The oracle itself is slow on these: a part is enough where all parts are alike.
    text = TEXTS[kind][:20_000] + TEXTS[kind][-20_000:]
    assert tokenizer.encode(text) == oracle.encode_ordinary(text)


@pytest.mark.parametrize("kind", ["one letter", "spaces and a word", "emoji", "apostrophes"])
@pytest.mark.parametrize("name", ["gpt2", "o200k"])
def test_a_hostile_stream_in_small_pieces_ends(name: str, kind: str) -> None:
    tokenizer = make_tokenizer(PATTERNS[name])
    text = TEXTS[kind]
    pieces = (text[place : place + 1000] for place in range(0, len(text), 1000))
    ids = np.fromiter(tokenizer.encode_iterable(pieces), tokenizer.id_type)
    assert np.array_equal(ids, tokenizer.encode_to_numpy(text))


def test_a_merge_list_out_of_order_is_no_slower() -> None:
    # Words beyond 64 bytes take another way where a merge uses a token made later.
    vocab = dict(enumerate([*(bytes([byte]) for byte in range(256)), b"abab", b"ab", b"ba"]))
    merges = [(b"ab", b"ab"), (b"a", b"b"), (b"b", b"a")]
    tokenizer = Tokenizer(vocab, merges)
    ids = tokenizer.encode_to_numpy("ab" * MEGABYTE)
    assert ids.tolist() == [256] * (MEGABYTE // 2)


def test_special_tokens_that_almost_match_end() -> None:
    special_tokens = ["a" * size for size in range(1, 300)] + ["a" * 300 + "b"]
    tokenizer = Tokenizer(dict(enumerate(bytes([byte]) for byte in range(256))), [], special_tokens)
    text = "a" * MEGABYTE + "c"
    assert tokenizer.decode(tokenizer.encode_to_numpy(text)) == text
