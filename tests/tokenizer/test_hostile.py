"""Adversarial and very long text is encoded correctly in linear time.

Quadratic work on a megabyte takes minutes; a watchdog then ends the tests with a traceback. Nothing
here measures time.
"""

import faulthandler
import random
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from oracles import BYTES, END, NATIVE_PATTERNS, learn, with_special

from groundup._native import WordCounter
from groundup.errors import TokenizerError
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.definition import TokenizerDefinition
from groundup.tokenizer.patterns import (
    CL100K,
    DEEPSEEK,
    GPT2,
    Pattern,
    find_pattern,
    find_staged_pattern,
    superword_pattern,
)

# Megabytes of text take half a minute.
pytestmark = pytest.mark.slow

MEGABYTE = 1_000_000
PATTERNS = {pattern.name: pattern for pattern in NATIVE_PATTERNS}

TEXTS = {
    "one letter": "a" * MEGABYTE,
    "one space": " " * MEGABYTE,
    "spaces and a word": " " * MEGABYTE + "word",
    "spaces and newlines": " \n" * (MEGABYTE // 2) + "x",
    "newlines and spaces": ("\n" + " " * 999) * (MEGABYTE // 1000) + "x",
    "wide spaces": "\u3000" * (MEGABYTE // 3) + "x",
    "apostrophes": "'" * MEGABYTE,
    "contractions": "'s" * (MEGABYTE // 2),
    "emoji": "😀" * (MEGABYTE // 4),
    "one ideograph": "字" * (MEGABYTE // 3),
    "combining marks": "e" + "\u0301" * (MEGABYTE // 2),
    "letters and marks": "e\u0301" * (MEGABYTE // 3),
    "capitals after an ideograph": "字" + "A" * MEGABYTE,
    "a mark before capitals": ("\u0301" + "A" * 999) * (MEGABYTE // 1000),
    "slashes": "/" * MEGABYTE + "\n",
    "all control characters": "".join(map(chr, range(32))) * (MEGABYTE // 32),
    "one line of four megabytes": "the quick brown fox, it's 123! " * (4 * MEGABYTE // 31),
    "one word of four megabytes": "abracadabra" * (4 * MEGABYTE // 11),
    "ends of text": ("the <|end|><|end|> there\n<|end|>" + "字字" * 20) * (MEGABYTE // 150),
}


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    assert sys.__stderr__ is not None
    faulthandler.dump_traceback_later(120, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


@cache
def learned() -> Tokenizer:
    """Merges learned from all hostile texts, across pre-tokens, so that long words merge a lot."""
    blocks = [text[:2000].encode() for text in TEXTS.values()]
    return learn(blocks, 1500, [], pattern=find_pattern(r"(?s).+"))[0]


@cache
def make_tokenizer(name: str | Pattern) -> Tokenizer:
    pattern = PATTERNS[name] if isinstance(name, str) else name
    return with_special(learned().vocab, learned().merges, [END], pattern)


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("name", PATTERNS)
def test_hostile_text_round_trips_with_any_number_of_threads(name: str, kind: str) -> None:
    tokenizer, text = make_tokenizer(name), TEXTS[kind]
    ids = tokenizer.encode_to_numpy(text)
    assert tokenizer.decode(ids) == text
    expected = (*map(tokenizer.encode_to_numpy, ("é", text[:100], "")), ids)
    found, offsets = tokenizer.encode_batch(["é", text[:100], "", text], 3)
    assert offsets.tolist() == np.cumsum([0, *map(len, expected)]).tolist()
    assert np.array_equal(found, np.concatenate(expected))


# Without memoization, each would retry the same failing searches over and over.
BACKTRACKING = [
    (r"a*b|a",),
    (r"(?:a|a)*b|.",),
    (r"\s*[\r\n]+|\s",),
    (r"[ab]*c|[ab]*d|a|b",),
    (r"\p{N}{1,3}", r"a*b|\s*\n|."),
    DEEPSEEK.stages,
]


@pytest.mark.parametrize("stages", BACKTRACKING)
def test_accepted_patterns_take_linear_time(stages: tuple[str, ...]) -> None:
    tokenizer = make_tokenizer(find_staged_pattern(stages))
    for text in TEXTS.values():
        # Quadratic work on half a megabyte takes minutes.
        text = text[:250_000] + text[-250_000:]
        ids = tokenizer.encode_to_numpy(text)
        assert tokenizer.decode(ids) == text
        pieces = [text[begin : begin + 60_000] for begin in range(0, len(text), 60_000)]
        assert list(tokenizer.encode_iterable(pieces)) == ids.tolist()


def test_an_unordered_merge_list_takes_linear_time() -> None:
    # For words beyond 64 bytes, unordered merges use another algorithm.
    vocab = dict(enumerate([*BYTES, b"abab", b"ab", b"ba"]))
    merges = [(b"ab", b"ab"), (b"a", b"b"), (b"b", b"a")]
    tokenizer = Tokenizer(vocab, merges)
    ids = tokenizer.encode_to_numpy("ab" * MEGABYTE)
    assert ids.tolist() == [256] * (MEGABYTE // 2)


def test_almost_matching_special_tokens_take_linear_time() -> None:
    special_tokens = ["a" * size for size in range(1, 300)] + ["a" * 300 + "b"]
    tokenizer = Tokenizer(dict(enumerate(BYTES)), [], special_tokens)
    text = "a" * MEGABYTE + "c"
    assert tokenizer.decode(tokenizer.encode_to_numpy(text)) == text


Merges = list[tuple[bytes, bytes]]
# A window is half a megabyte plus the total size of the vocabulary's tokens.
WINDOW = 1 << 19


def tokenizer_of(merges: Merges, pattern: Pattern = GPT2) -> Tokenizer:
    tokens = BYTES + [left + right for left, right in merges]
    return Tokenizer.from_definition(
        TokenizerDefinition(dict(enumerate(tokens)), merges, {}, pattern)
    )


def encode_merge_by_merge(word: str, merges: Merges) -> list[int]:
    """With one character per symbol, a merge replaces a pair everywhere, from the left."""
    symbol_of = {bytes([byte]): chr(byte) for byte in range(256)}
    for number, (left, right) in enumerate(merges):
        symbol = chr(256 + number)
        symbol_of[left + right] = symbol
        word = word.replace(symbol_of[left] + symbol_of[right], symbol)
    return list(map(ord, word))


def random_merges(alphabet: str, count: int, seed: int) -> Merges:
    shuffled = random.Random(seed)
    tokens = [letter.encode() for letter in alphabet]
    merges: Merges = []
    while len(merges) < count:
        left, right = shuffled.choices(tokens, k=2)
        if len(left + right) <= 24 and left + right not in tokens:
            merges.append((left, right))
            tokens.append(left + right)
    return merges


def cascade(letters: str) -> Merges:
    """Later pairs of the alphabet merge first, so the end of a word decides all of its merges."""
    pairs = [(a.encode(), b.encode()) for a, b in pairwise(letters)]
    return [*pairs[::-1], (b"xy", b"xy"), (b"xyxy", b"xyxy")]


@pytest.mark.parametrize("kind", ["random", "periodic", "one letter", "cascade"])
def test_windows_do_not_change_the_ids(kind: str) -> None:
    shuffled = random.Random(1)
    merges = random_merges("abc", 150, 1)
    unit = "".join(shuffled.choices("abc", k=29 if kind == "periodic" else 3 * WINDOW))
    if kind == "one letter":
        merges, unit = [(b"a", b"a"), (b"aa", b"a"), (b"aaa", b"aa")], "a"
    elif kind == "cascade":
        unit = "mnopqrstuvwxy"
        merges = cascade(unit)
    word = (unit * (3 * WINDOW // len(unit) + 1))[: 3 * WINDOW]
    tokenizer = tokenizer_of(merges)
    expected = encode_merge_by_merge(word, merges)
    assert tokenizer.encode(word) == expected
    pieces = [word[begin : begin + 300_000] for begin in range(0, len(word), 300_000)]
    assert list(tokenizer.encode_iterable(pieces)) == expected


RUNS = ["a", "A", "aB", "é", "字", "1", " ", "\n", " \n", "\r\n", "\0", "!", "!/", "!'", "'", "/"]
EDGES = ["", "x", "Don't", " ", "\n", "!", "'s", "字", "A字", "'LL", "!\n", "1", "/\n/"]


STAGED = [DEEPSEEK, superword_pattern(CL100K), find_staged_pattern((r"\p{N}", *GPT2.stages))]


@pytest.mark.parametrize(
    "pattern", [*NATIVE_PATTERNS, *STAGED], ids=lambda pattern: pattern.stages[0][:9]
)
def test_a_stream_is_cut_inside_runs_without_changing_the_ids(pattern: Pattern) -> None:
    shuffled = random.Random(pattern.stages[-1])
    merges = [(run[:1].encode()[:1], run[-1:].encode()[-1:]) for run in ("aa", "  ", "\n\n", "!!")]
    tokenizer = tokenizer_of([*merges, (b"aa", b"aa"), (b" ", b"\n"), (b"\n", b" ")], pattern)
    num_cut = 0
    for run in RUNS:
        before, behind = shuffled.choices(EDGES, k=2)
        text = f"{before}{run * ((9 << 17) // len(run.encode()))}{behind}{run * 9}{before}"
        num_cut += tokenizer._encoder.encode_stream(text.encode()[: 9 << 17])[1] > 0
        pieces = [text[begin : begin + 300_000] for begin in range(0, len(text), 300_000)]
        found = list(tokenizer.encode_iterable(pieces))
        assert found == tokenizer.encode(text), (before, run, behind)
    # Some runs cannot be cut from the text before them, nor uncased letters from others.
    assert num_cut >= len(RUNS) - 4


@pytest.mark.parametrize("pattern", STAGED, ids=lambda pattern: pattern.stages[0][:9])
def test_an_endless_pre_token_is_encoded_in_bounded_memory(pattern: Pattern) -> None:
    tokenizer = tokenizer_of([(b"ab", b"ab"), (b"a", b"b")][::-1], pattern)
    fed = num_ids = most = 0

    def pieces() -> Iterator[str]:
        nonlocal fed, most
        while fed < 10_000_000:
            fed += 100_000
            yield "ab" * 50_000
            most = max(most, fed - 4 * num_ids)

    for id in tokenizer.encode_iterable(pieces()):
        assert id == 257
        num_ids += 1
    assert 4 * num_ids == fed == 10_000_000
    assert most < 3_000_000


def test_endless_words_are_rejected_if_merges_are_unordered() -> None:
    tokenizer = tokenizer_of([(b"aa", b"b"), (b"a", b"a")])
    text = "a" * (40 << 20)
    with pytest.raises(TokenizerError, match=r"longer than 16777216 bytes.* break into the text"):
        list(tokenizer.encode_iterable([text]))


def test_a_counter_finds_cuts_only_between_pre_tokens() -> None:
    counter = WordCounter(GPT2.splitter, [], 1)
    assert counter.find_last_cut(b"a" * 100_000) == 0
    text = b"!" * 10_000 + b"1" * 10_000 + b"a" * 10_000 + b"." * 10_000 + b"b" * 10_000
    assert counter.find_last_cut(text) == 40_000
