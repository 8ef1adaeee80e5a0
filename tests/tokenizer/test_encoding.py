"""The native encoder gives the ids of the definition, for any vocabulary and any word."""

import copy
import pickle
import random
from typing import Any

import numpy as np
import pytest

from groundup.tokenizer import Tokenizer
from groundup.tokenizer.definition import TokenizerDefinition
from groundup.tokenizer.patterns import DEEPSEEK, GPT2, O200K, Pattern
from groundup.tokenizer.reference import encode_reference, train_bpe_reference

BYTES = [bytes([byte]) for byte in range(256)]
MIXED = "the theme of thé thesis — 字字😀😀 don't, 12345\n\n  and then there's ab abab aabb bbaa"


def trained(text: str, num_merges: int) -> TokenizerDefinition:
    return TokenizerDefinition(*train_bpe_reference(text, 256 + num_merges))


MIXED_TOKENIZER = Tokenizer.from_definition(trained(MIXED * 2, 40))


@pytest.mark.parametrize(
    "size", [1, 2, 14, 15, 16, 17, 31, 63, 64, 65, 66, 200, 255, 256, 257, 300]
)
def test_words_of_any_length_encode_as_the_reference(size: int) -> None:
    shuffled = random.Random(size)
    words = ["".join(shuffled.choices("abc", k=size)) for _ in range(4)] + ["a" * size, "ab" * size]
    definition = trained(" ".join(words), 80)
    tokenizer = Tokenizer.from_definition(definition)
    for word in words:
        ids = encode_reference(definition, word[:size])
        assert tokenizer.encode(word[:size]) == ids
        assert tokenizer.encode(f"{word[:size]}.")[:-1] == ids


@pytest.mark.parametrize("vocab_size", [65_536, 65_537])
def test_ids_are_as_wide_as_the_vocabulary_needs(vocab_size: int) -> None:
    filling = [b"token %d" % number for number in range(vocab_size - 257)]
    vocab = dict(enumerate([*BYTES, *filling, b"ab"]))
    tokenizer = Tokenizer(vocab, [(b"a", b"b")], None)
    ids = tokenizer.encode_to_numpy("abcab" * 20)
    assert tokenizer.vocab_size == vocab_size
    assert ids.dtype == tokenizer.id_type == (np.uint16 if vocab_size == 65_536 else np.uint32)
    assert ids.tolist() == [vocab_size - 1, ord("c"), vocab_size - 1] * 20
    assert tokenizer.decode(ids) == "abcab" * 20


def test_more_words_than_the_cache_holds_encode_as_few() -> None:
    definition = trained(" ".join(map(str, range(5_000))), 60)
    tokenizer = Tokenizer.from_definition(definition)
    # 1.3 million short words overflow the lines, 600 thousand long ones the arena beside them.
    short = [f" {number}" for number in range(1_000_000, 2_300_000)]
    long = [f" {number:09d}{number:09d}" for number in range(600_000)]
    for words in (short, long):
        chunks = ["".join(words[begin : begin + 50_000]) for begin in range(0, len(words), 50_000)]
        alone = [Tokenizer.from_definition(definition).encode_to_numpy(chunk) for chunk in chunks]
        for _ in range(2):
            assert np.array_equal(tokenizer.encode_to_numpy("".join(words)), np.concatenate(alone))


# Words of eight bytes that differ from their partner by 0xA5 in each, in one line of the cache.
CACHE_PARTNERS = [
    ("إحظإ", "}\x00}\x08}\x1d}\x00"),
    ("\u062a\u0627\u0625\u063f", "}\x0f}\x02}\x00}\x1a"),
    ("\u0601\u0604\u0609\u060c", "}$}!},})"),
    ("\u0601\u061b\u060f\u060d", "}$}>}*}("),
]


@pytest.mark.parametrize("vocab_size", [400, 66_000])
@pytest.mark.parametrize("words", CACHE_PARTNERS)
def test_a_word_is_never_taken_for_another_in_the_cache(
    words: tuple[str, str], vocab_size: int
) -> None:
    filling = [b"token %d" % number for number in range(vocab_size - 257)]
    vocab = dict(enumerate([*BYTES, *filling, "\u062a".encode()]))
    for first, second in (words, words[::-1]):
        tokenizer = Tokenizer(vocab, [(b"\xd8", b"\xaa")])
        for word in (first, second, first, second, second * 2, first * 2, f" {second}!!"):
            assert tokenizer.encode(word) == encode_reference(tokenizer.definition, word)


def test_halves_of_surrogate_pairs_become_the_replacement_character() -> None:
    tokenizer = MIXED_TOKENIZER
    long = "é" * 300_000
    for text, same in (
        ("a\ud800b", "a\ufffdb"),
        ("\udc00\ud800", "\ufffd\ufffd"),
        ("x\ud83d\ude00y", "x😀y"),
        ("\ud83d", "\ufffd"),
        ("\ufeff\ud800", "\ufeff\ufffd"),
        (f"{long}\ud800", f"{long}\ufffd"),
    ):
        ids = tokenizer.encode(same)
        assert tokenizer.encode(text) == tokenizer.encode_to_numpy(text).tolist() == ids
        mixed: Any = ["é", text, b"A"]
        assert tokenizer.encode_batch(mixed)[0].tolist() == tokenizer.encode("é") + ids + [65]
        assert list(tokenizer.encode_iterable([text])) == ids


@pytest.mark.parametrize("pattern", [O200K, DEEPSEEK])
def test_copies_encode_alike(pattern: Pattern) -> None:
    definition = TokenizerDefinition(
        {**MIXED_TOKENIZER.vocab, 296: b"<x>"}, MIXED_TOKENIZER.merges, {"<x>": 296}, pattern
    )
    tokenizer = Tokenizer.from_definition(definition)
    copies = (copy.copy(tokenizer), copy.deepcopy(tokenizer), pickle.loads(pickle.dumps(tokenizer)))
    for same in copies:
        assert same.id == tokenizer.id
        assert same.definition == definition
        assert same.encode(f"{MIXED}<x>{MIXED}") == tokenizer.encode(f"{MIXED}<x>{MIXED}")


def test_a_pattern_given_to_the_constructor_splits_the_text() -> None:
    vocab, merges = train_bpe_reference("a1 b22 c333 a1 b22", 280, [])
    definition = TokenizerDefinition(vocab, merges, {}, O200K)
    for pattern in ("o200k", O200K, O200K.stages[0]):
        assert Tokenizer(vocab, merges, pattern=pattern).definition == definition
    assert Tokenizer(vocab, merges).pattern == GPT2
