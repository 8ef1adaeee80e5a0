"""The reference implementation against byte-pair encoding worked out by hand."""

import hypothesis
import hypothesis.strategies as st
import pytest
from oracles import BYTES

from groundup.tokenizer.definition import TokenizerDefinition
from groundup.tokenizer.formats.tiktoken import recover_merges
from groundup.tokenizer.patterns import find_pattern
from groundup.tokenizer.reference import (
    encode_reference,
    recover_merges_reference,
    split_special_tokens,
    train_bpe_reference,
)


def train(text: str, num_merges: int, special_tokens: tuple[str, ...] = ()) -> TokenizerDefinition:
    vocab_size = 256 + num_merges + len(special_tokens)
    vocab, merges = train_bpe_reference(text, vocab_size, special_tokens)
    ids = {text: len(vocab) - len(special_tokens) + i for i, text in enumerate(special_tokens)}
    return TokenizerDefinition(vocab, merges, ids).validate()


def test_the_textbook_corpus_gives_the_textbook_merges() -> None:
    text = " ".join(["low"] * 5 + ["lower"] * 2 + ["widest"] * 3 + ["newest"] * 6)
    _, merges = train_bpe_reference(text, 256 + 6, pattern=find_pattern(r"[a-z]+"))
    joined = b", ".join(b" ".join(pair) for pair in merges)
    assert joined == b"s t, e st, o w, l ow, w est, n e"


def test_ties_go_to_the_greater_pair_of_byte_strings() -> None:
    # All four pairs occur once; they compare part by part, not as joined bytes.
    _, merges = train_bpe_reference("ab BZ a", 256 + 1)
    assert merges == [(b"a", b"b")]
    _, merges = train_bpe_reference(["abc", "BA"], 256 + 3, pattern=find_pattern(r"\w+"))
    assert merges == [(b"b", b"c"), (b"a", b"bc"), (b"B", b"A")]


@pytest.mark.parametrize(
    ("text", "special_tokens", "pieces"),
    [
        ("", ["<a>"], []),
        ("xyz", [], ["xyz"]),
        ("x<a>y", ["<a>"], ["x", ("<a>",), "y"]),
        ("<a><a>", ["<a>"], [("<a>",), ("<a>",)]),
        ("<a><a><a>", ["<a>", "<a><a>"], [("<a><a>",), ("<a>",)]),
        ("abcd", ["bcd", "ab"], [("ab",), "cd"]),
        ("a.*b|c", [".*", "|", "x"], ["a", (".*",), "b", ("|",), "c"]),
    ],
)
def test_special_tokens_match_leftmost_longest(
    text: str, special_tokens: list[str], pieces: list[str | tuple[str]]
) -> None:
    cut = split_special_tokens(text, special_tokens)
    assert [(piece,) if is_special else piece for piece, is_special in cut] == pieces


def test_the_lowest_rank_merges_first_wherever_it_is() -> None:
    vocab = dict(enumerate([*BYTES, b"bc", b"ab", b"abc"]))
    definition = TokenizerDefinition(vocab, [(b"b", b"c"), (b"a", b"b"), (b"a", b"bc")])
    assert encode_reference(definition, "abc") == [258]
    assert encode_reference(definition, "abab") == [257, 257]


def test_merges_are_recovered_from_ranks() -> None:
    definition = train("the quick brown fox jumps over the lazy dog, the end of the theme", 40)
    tokens = list(definition.vocab.values())
    pairs = recover_merges_reference(tokens)
    assert pairs[:256] == [(-1, -1)] * 256
    assert [(tokens[left], tokens[right]) for left, right in pairs[256:]] == definition.merges


@hypothesis.given(st.lists(st.text("ab", min_size=2, max_size=7), unique=True, max_size=12))
@hypothesis.example(["abc", "xyz", "ab"])
def test_recovered_merges_equal_the_reference(words: list[str]) -> None:
    tokens = [*BYTES, *(word.encode() for word in words)]
    assert recover_merges(tokens) == recover_merges_reference(tokens)
