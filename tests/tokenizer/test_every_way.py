"""All encoding methods equal the reference and round-trip, for any vocabulary."""

import copy
import dataclasses
import pickle
import random
from functools import cache

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from oracles import BYTES, PATTERNS, SNIPPETS, SPECIAL, learn, with_special, without_splitting

from groundup.tokenizer import Tokenizer
from groundup.tokenizer.definition import TokenizerDefinition
from groundup.tokenizer.patterns import DEEPSEEK, O200K, Pattern
from groundup.tokenizer.reference import encode_reference, train_bpe_reference

TEXTS = st.one_of(
    st.lists(st.sampled_from(SNIPPETS), max_size=25).map("".join),
    st.text("aabbé ", max_size=80),
    st.text(max_size=30),
)
# Long runs cross the blocks and windows of the scanners.
RUNS = st.builds(
    lambda piece, size: piece * size,
    st.sampled_from(SNIPPETS),
    st.sampled_from([1, 2, 7, 63, 64, 65, 600, 4100]),
)


def odd_merges(chance: random.Random) -> tuple[list[bytes], list[tuple[bytes, bytes]]]:
    """Merges that training never learns: out of order, with equal results, inapplicable."""
    tokens = [b"a", b"b"] if chance.random() < 0.5 else [b"a", b"b", b"\xc3", b"\xa9", b" "]
    merges: list[tuple[bytes, bytes]] = []
    for _ in range(chance.randrange(20)):
        left, right = chance.choices(tokens, k=2)
        if len(left + right) <= 8:
            merges.append((left, right))
            tokens.append(left + right)
    if chance.random() < 0.5:
        # Other splits of the same tokens; only one merge per token can ever be applied.
        splits = [(token[:cut], token[cut:]) for token in tokens for cut in range(1, len(token))]
        for pair in chance.sample(splits, len(splits) // 2):
            if pair[0] in tokens and pair[1] in tokens:
                merges.insert(chance.randrange(len(merges) + 1), pair)
    if chance.random() < 0.3:
        chance.shuffle(merges)
    if chance.random() < 0.3:
        merges = [merge for merge in merges if chance.random() < 0.8]
    extra = ["".join(chance.choices("ab ", k=4)).encode() for _ in range(chance.randrange(3))]
    distinct = list(dict.fromkeys([*BYTES, *tokens, *extra]))
    chance.shuffle(distinct)
    return distinct, list(dict.fromkeys(merges))


@cache
def make_tokenizer(seed: int) -> Tokenizer:
    """A random tokenizer; special tokens may have the bytes of ordinary ones."""
    chance = random.Random(seed)
    pattern = chance.choice(PATTERNS)
    if seed % 3 == 0:
        tokens, merges = odd_merges(chance)
    else:
        text = "".join(chance.choices(SNIPPETS, k=200)).encode()
        trained = without_splitting()
        if seed % 3 == 1:
            trained, _ = learn([text], 256 + chance.randrange(60), [], pattern=pattern)
        tokens, merges = list(trained.vocab.values()), trained.merges
    special = chance.sample(SPECIAL, chance.choice([0, 1, 3, 8]))
    is_whole = chance.random() < 0.2
    return with_special(dict(enumerate(tokens)), merges, special, pattern, is_whole)


@pytest.mark.slow
@hypothesis.given(
    tokenizer=st.integers(0, 299).map(make_tokenizer),
    texts=st.lists(TEXTS, max_size=5),
    runs=st.lists(RUNS, max_size=3),
    cuts=st.lists(st.integers(0, 20_000), max_size=8),
    num_threads=st.integers(1, 4),
    data=st.data(),
)
@hypothesis.settings(max_examples=250)
def test_every_encoding_method_equals_the_reference(
    tokenizer: Tokenizer,
    texts: list[str],
    runs: list[str],
    cuts: list[int],
    num_threads: int,
    data: st.DataObject,
) -> None:
    expected = [encode_reference(tokenizer.definition, text) for text in texts]
    assert [tokenizer.encode(text) for text in texts] == expected
    kept = {text: id for text, id in tokenizer.special_tokens.items() if id % 2}
    vocab = tokenizer.definition.ordinary_tokens()
    vocab |= {id: text.encode() for text, id in kept.items()}
    fewer = dataclasses.replace(tokenizer.definition, vocab=vocab, special_tokens=kept)
    for text in texts:
        assert tokenizer.encode(text, allowed_special=kept) == encode_reference(fewer, text)
    ids, offsets = tokenizer.encode_batch(texts, num_threads)
    assert ids.dtype == tokenizer.id_type and offsets.dtype == np.int64 and offsets[0] == 0
    assert [part.tolist() for part in np.split(ids, offsets[1:-1])][: len(texts)] == expected
    # Any order, and the same document twice.
    order = data.draw(st.lists(st.sampled_from(range(len(texts))))) if texts else []
    joined, ends = "".join(texts).encode(), np.cumsum([0, *(len(t.encode()) for t in texts)])
    bounds = np.array([[ends[i], ends[i + 1]] for i in order], np.int64).reshape(-1, 2)
    end_id = next(iter(tokenizer.special_tokens.values()), None)
    ids, offsets = tokenizer.encode_documents(joined, bounds, num_threads, end_id)
    for number, index in enumerate(order):
        end = [] if end_id is None else [end_id]
        assert ids[offsets[number] : offsets[number + 1]].tolist() == expected[index] + end
    whole = "".join(texts[:2] + runs + texts[2:])
    ids = tokenizer.encode_to_numpy(whole)
    assert tokenizer.decode(ids) == whole
    stops = sorted(cut % (len(whole) + 1) for cut in cuts)
    pieces = [whole[a:b] for a, b in zip([0, *stops], [*stops, len(whole)], strict=True)]
    assert list(tokenizer.encode_iterable(pieces)) == ids.tolist()
    assert list(tokenizer.encode_iterable(whole[:500])) == tokenizer.encode(whole[:500])


MIXED = "the theme of thé thesis — 字字😀😀 don't, 12345\n\n  and then there's ab abab aabb bbaa"


def trained(text: str, num_merges: int) -> TokenizerDefinition:
    return TokenizerDefinition(*train_bpe_reference(text, 256 + num_merges))


MIXED_TOKENIZER = Tokenizer.from_definition(trained(MIXED * 2, 40))


@pytest.mark.parametrize("size", [14, 15, 16, 17, 63, 64, 65, 66, 255, 256, 257])
def test_words_of_any_length_encode_like_the_reference(size: int) -> None:
    shuffled = random.Random(size)
    words = ["".join(shuffled.choices("abc", k=size)) for _ in range(4)] + ["a" * size, "ab" * size]
    tokenizer = Tokenizer.from_definition(trained(" ".join(words), 80))
    for word in words:
        assert tokenizer.encode(word) == encode_reference(tokenizer.definition, word)


@pytest.mark.parametrize("vocab_size", [65_536, 65_537])
def test_the_dtype_of_ids_depends_on_the_vocabulary_size(vocab_size: int) -> None:
    filling = [b"token %d" % number for number in range(vocab_size - 257)]
    vocab = dict(enumerate([*BYTES, *filling, b"ab"]))
    tokenizer = Tokenizer(vocab, [(b"a", b"b")], None)
    ids = tokenizer.encode_to_numpy("abcab" * 20)
    assert tokenizer.vocab_size == vocab_size
    assert ids.dtype == tokenizer.id_type == (np.uint16 if vocab_size == 65_536 else np.uint32)
    assert ids.tolist() == [vocab_size - 1, ord("c"), vocab_size - 1] * 20
    assert tokenizer.decode(ids) == "abcab" * 20


@pytest.mark.slow
def test_a_full_cache_does_not_change_the_ids() -> None:
    definition = trained(" ".join(map(str, range(1_000))), 60)
    tokenizer = Tokenizer.from_definition(definition)
    # 1.3 million short words overflow the table, 600 thousand long ones the arena.
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
def test_the_cache_never_confuses_words(words: tuple[str, str], vocab_size: int) -> None:
    filling = [b"token %d" % number for number in range(vocab_size - 257)]
    vocab = dict(enumerate([*BYTES, *filling, "\u062a".encode()]))
    for first, second in (words, words[::-1]):
        tokenizer = Tokenizer(vocab, [(b"\xd8", b"\xaa")])
        for word in (first, second, first, second, second * 2, first * 2, f" {second}!!"):
            assert tokenizer.encode(word) == encode_reference(tokenizer.definition, word)


def test_lone_surrogates_become_the_replacement_character() -> None:
    long = "é" * 300_000
    pairs = [("a\ud800b", "a\ufffdb"), ("x\ud83d\ude00y", "x😀y"), ("\ud83d", "\ufffd")]
    for text, same in (
        *pairs,
        ("\ufeff\ud800", "\ufeff\ufffd"),
        (f"{long}\ud800", f"{long}\ufffd"),
    ):
        ids = MIXED_TOKENIZER.encode(same)
        assert MIXED_TOKENIZER.encode(text) == MIXED_TOKENIZER.encode_to_numpy(text).tolist() == ids
        assert MIXED_TOKENIZER.encode_batch([text, "A"])[0].tolist() == [*ids, 65]


@pytest.mark.parametrize("pattern", [O200K, DEEPSEEK])
def test_copies_give_the_same_ids(pattern: Pattern) -> None:
    definition = TokenizerDefinition(
        {**MIXED_TOKENIZER.vocab, 296: b"<x>"}, MIXED_TOKENIZER.merges, {"<x>": 296}, pattern
    )
    tokenizer = Tokenizer.from_definition(definition)
    copies = (copy.copy(tokenizer), copy.deepcopy(tokenizer), pickle.loads(pickle.dumps(tokenizer)))
    for same in copies:
        assert same == tokenizer and same.encode(f"{MIXED}<x>") == tokenizer.encode(f"{MIXED}<x>")
