"""Special tokens stay whole: leftmost, there the longest, however many and whatever they are."""

import random

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from groundup import _native
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.definition import TokenizerDefinition
from groundup.tokenizer.native import as_array
from groundup.tokenizer.patterns import CL100K, DEEPSEEK, GPT2, LLAMA3, O200K, QWEN2
from groundup.tokenizer.reference import (
    encode_reference,
    train_bpe_reference,
)

BYTES = {byte: bytes([byte]) for byte in range(256)}
VOCAB, MERGES = train_bpe_reference("ab abba aab the a.b é <|x|> a\nb it's " * 3, 280)
PATTERNS = (GPT2, CL100K, LLAMA3, QWEN2, O200K, DEEPSEEK)

# Prefixes of each other, overlapping ends, expressions, white space, single characters.
NASTY = "<|x|> <|x|><|x|> <|x < |> ab aba abab bab é a.b .* [a-b]+ (a|b) \\d $ ^ 's 😀 \x00".split()
NASTY += ["a b", " ", "  ", "\n", " \n", "b\na"]
TEXTS = st.lists(
    st.sampled_from([*NASTY, *"ab <|x>\n.é'st1", "the", " a", "it's", "  \n "]), max_size=25
).map("".join)


def with_special(special_tokens: list[str], pattern_number: int = 0) -> Tokenizer:
    """Special tokens may have the bytes of ordinary ones, under ids of their own."""
    ids = {text: len(VOCAB) + 3 * place for place, text in enumerate(special_tokens)}
    vocab = {**VOCAB, **{id: text.encode() for text, id in ids.items()}}
    return Tokenizer.from_definition(
        TokenizerDefinition(vocab, MERGES, ids, PATTERNS[pattern_number])
    )


@hypothesis.given(text=TEXTS, special_tokens=st.lists(st.sampled_from(NASTY), unique=True))
def test_special_tokens_are_those_of_tiktoken(text: str, special_tokens: list[str]) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    # tiktoken takes the first of several that fit, in no order of its own: give it none that
    # begin like another.
    special_tokens = [
        token
        for token in special_tokens
        if not any(other != token and other.startswith(token) for other in special_tokens)
    ]
    tokenizer = with_special(special_tokens)
    oracle = tiktoken.Encoding(
        "oracle",
        pat_str=GPT2.stages[0],
        mergeable_ranks={token: id for id, token in VOCAB.items()},
        special_tokens=tokenizer.special_tokens,
    )
    assert tokenizer.encode(text) == oracle.encode(text, allowed_special="all")


def test_ten_thousand_special_tokens_are_found() -> None:
    shuffled = random.Random(0)
    special_tokens = [f"<|{number}|>" for number in range(5_000)]
    special_tokens += [f"[{number}" for number in range(4_900)]
    special_tokens += ["<" + "x" * size for size in range(99)] + ["<|" + "long " * 20_000]
    tokenizer = with_special(special_tokens)
    between = ["", " ", "the", "<", "\n"]
    parts = (shuffled.choice(special_tokens) + shuffled.choice(between) for _ in range(3000))
    text = "".join(parts) + special_tokens[-1] + special_tokens[-1][:-1]
    expected = encode_reference(tokenizer.definition, text)
    assert tokenizer.encode(text) == expected
    assert tokenizer.encode_batch([text, text[7:]], 2)[0].tolist()[: len(expected)] == expected
    assert list(tokenizer.encode_iterable([text[:999], text[999:]])) == expected


def test_one_that_was_not_given_is_ordinary_text() -> None:
    plain = Tokenizer(VOCAB, MERGES)
    assert len(plain.encode("<|x|>")) > 1
    given = Tokenizer(VOCAB, MERGES, ["<|x|>"])
    assert given.encode("<|y|>") == plain.encode("<|y|>")
    assert given.encode("<|x|") == plain.encode("<|x|")
    in_vocab = Tokenizer({**BYTES, 256: b"<|y|>"}, [])
    assert in_vocab.encode("<|y|>") == list(b"<|y|>")


def test_ones_missing_from_the_vocabulary_are_appended_in_order() -> None:
    vocab = {**BYTES, 256: b"<|b|>"}
    tokenizer = Tokenizer(vocab, [], ["<|c|>", "<|b|>", "<|a|>"])
    assert len(vocab) == 257
    assert tokenizer.special_tokens == {"<|c|>": 257, "<|b|>": 256, "<|a|>": 258}
    assert tokenizer.vocab_size == len(tokenizer) == 259
    assert tokenizer.encode("<|a|><|b|>x<|c|>") == [258, 256, ord("x"), 257]


@pytest.mark.parametrize("pattern_number", range(len(PATTERNS) - 1))
@pytest.mark.parametrize(
    "special_tokens",
    [["a b"], ["b\na", "b\nab"], [" the a", "the"], ["a", " ", "\n"], ["b a", "a b"]],
)
def test_a_document_cut_for_threads_keeps_its_special_tokens(
    special_tokens: list[str], pattern_number: int
) -> None:
    # All natural cuts of this text lie inside of special tokens, or next to them.
    shuffled = random.Random(pattern_number)
    pieces = ["a b", "b\na", "b\nab", " the a", "the", "a", " ", "\n", "ab", "1 2", "."]
    text = "".join(shuffled.choices(pieces, k=700_000))
    tokenizer = with_special(special_tokens, pattern_number)
    expected = tokenizer.encode_to_numpy(text)
    ids, _ = tokenizer._encoder.encode_batch([text], 3, -1)
    assert np.array_equal(as_array(ids, tokenizer.id_type), expected)
    assert expected[:2000].tolist() == encode_reference(tokenizer.definition, text[:20_000])[:2000]


def test_a_special_token_beyond_the_vocabulary_is_refused() -> None:
    tokens = [bytes([byte]) for byte in range(256)]
    with pytest.raises(ValueError, match="'<x>' has id 999, beyond the vocabulary"):
        _native.Encoder(tokens, [], [(b"<x>", 999)], "gpt2", False)
