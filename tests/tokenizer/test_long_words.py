"""Pre-tokens longer than the window they are merged in: the ids of the whole, in bounded memory."""

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest

from groundup._native import WordCounter
from groundup.errors import TokenizerError
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.definition import TokenizerDefinition
from groundup.tokenizer.patterns import CL100K, GPT2, LLAMA3, O200K, QWEN2, Pattern

Merges = list[tuple[bytes, bytes]]
# A window has half a megabyte and what the tokens of the vocabulary have together.
WINDOW = 1 << 19
NATIVE_PATTERNS = (GPT2, CL100K, LLAMA3, QWEN2, O200K)


def make_tokenizer(merges: Merges, pattern: Pattern = GPT2) -> Tokenizer:
    tokens = [bytes([byte]) for byte in range(256)] + [left + right for left, right in merges]
    return Tokenizer.from_definition(
        TokenizerDefinition(dict(enumerate(tokens)), merges, {}, pattern)
    )


def encode_merge_by_merge(word: str, merges: Merges) -> list[int]:
    """One character a symbol: replacing a pair everywhere, from the left, is a merge."""
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
    """The later a pair stands in the alphabet, the earlier it merges: the end decides the rest."""
    pairs = [(a.encode(), b.encode()) for a, b in pairwise(letters)]
    return [*pairs[::-1], (b"xy", b"xy"), (b"xyxy", b"xyxy")]


def long_words() -> Iterator[tuple[str, Merges, str]]:
    for seed in range(2):
        shuffled = random.Random(seed)
        merges = random_merges("abc"[: 2 + seed], 150, seed)
        yield f"random {seed}", merges, "".join(shuffled.choices("abc", k=3 * WINDOW))
        unit = "".join(shuffled.choices("ab", k=shuffled.randrange(1, 30)))
        yield f"periodic {seed}", merges, (unit * (3 * WINDOW))[: 3 * WINDOW + seed]
    powers = [(b"a" * 2**k, b"a" * 2**k) for k in range(6)]
    yield "one letter", powers, "a" * (3 * WINDOW + 5)
    yield "one letter, odd", [(b"a", b"a"), (b"aa", b"a"), (b"aaa", b"aa")], "a" * (3 * WINDOW + 4)
    letters = "mnopqrstuvwxy"
    yield "cascade", cascade(letters), (letters * WINDOW)[: 3 * WINDOW]


@pytest.mark.parametrize(
    ("merges", "word"), [pytest.param(*rest, id=name) for name, *rest in long_words()]
)
def test_windows_give_the_ids_of_the_whole(merges: Merges, word: str) -> None:
    tokenizer = make_tokenizer(merges)
    expected = encode_merge_by_merge(word, merges)
    assert tokenizer.encode(word) == expected
    pieces = [word[begin : begin + 300_000] for begin in range(0, len(word), 300_000)]
    assert list(tokenizer.encode_iterable(pieces)) == expected


RUNS = ["a", "A", "aB", "é", "字", "1", " ", "\n", " \n", "\r\n", "\0", "!", "!/", "!'", "'", "/"]
EDGES = ["", "x", "Don't", " ", "\n", "!", "'s", "字", "A字", "'LL", "!\n", "1", "/\n/"]


@pytest.mark.parametrize("pattern", NATIVE_PATTERNS, ids=lambda pattern: pattern.name)
def test_a_stream_is_cut_inside_of_runs_where_nothing_changes(pattern: Pattern) -> None:
    shuffled = random.Random(pattern.name)
    merges = [(run[:1].encode()[:1], run[-1:].encode()[-1:]) for run in ("aa", "  ", "\n\n", "!!")]
    tokenizer = make_tokenizer([*merges, (b"aa", b"aa"), (b" ", b"\n"), (b"\n", b" ")], pattern)
    num_cut = 0
    for run in RUNS:
        before, behind = shuffled.choices(EDGES, k=2)
        text = f"{before}{run * ((2 << 20) // len(run.encode()))}{behind}{run * 9}{before}".encode()
        parts, begin, window = [], 0, 5 << 18
        while begin + window < len(text):
            ids, used = tokenizer.encode_beginning(text[begin : begin + window])
            parts += ids.tolist()
            begin += used
            num_cut += used > 0
            window = window + (1 << 20) if not used else 5 << 18
        parts += tokenizer.encode(text[begin:].decode())
        assert parts == tokenizer.encode(text.decode()), (before, run, behind)
    # In words that end where capitals begin, letters without case may not be parted.
    assert num_cut >= len(RUNS) - 8


def test_merges_that_use_what_a_later_one_makes_are_refused_for_endless_words() -> None:
    tokenizer = make_tokenizer([(b"aa", b"b"), (b"a", b"a")])
    text = b"a" * (40 << 20)
    with pytest.raises(TokenizerError, match=r"longer than 16777216 bytes.* break into the text"):
        tokenizer.encode_beginning(text)


def test_a_counter_finds_cuts_between_pre_tokens_and_none_inside() -> None:
    counter = WordCounter("gpt2", [], 1)
    assert counter.find_last_cut(b"a" * 100_000) == 0
    text = b"!" * 10_000 + b"1" * 10_000 + b"a" * 10_000 + b"." * 10_000 + b"b" * 10_000
    assert counter.find_last_cut(text) == 20_000
