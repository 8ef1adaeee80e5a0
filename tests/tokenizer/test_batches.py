"""Batches encode each document as if alone, with any threads and special tokens."""

import functools
import hashlib
import random
import threading

import numpy as np
import pytest
from oracles import BYTES, END, NATIVE_PATTERNS, with_special, without_splitting

from groundup import _native
from groundup.errors import TokenizerError
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.native import as_array
from groundup.tokenizer.patterns import GPT2, Pattern
from groundup.tokenizer.reference import encode_reference, train_bpe_reference

CORPUS = "the theme of the thesis, it's then 123 there\n\n  and thé 字字 😀 thus\nsome more of it."
VOCAB, MERGES = without_splitting().vocab, without_splitting().merges
TOKENIZER = with_special(VOCAB, MERGES, [END])


@pytest.mark.parametrize("bad", [None, 5, ["nested"]])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_non_text_input_is_rejected_without_hanging(bad: object, num_threads: int) -> None:
    texts = [*["the theme"] * 100, bad, *["the theme"] * 100]
    with pytest.raises(TypeError):
        TOKENIZER._encoder.encode_batch(texts, num_threads, -1)  # type: ignore[arg-type]
    assert TOKENIZER.encode_batch(["the"], num_threads)[0].tolist() == TOKENIZER.encode("the")
    with pytest.raises(TokenizerError, match="num_threads is 0"):
        TOKENIZER.encode_batch(["text"], num_threads=0)


def test_end_id_follows_a_huge_document_once() -> None:
    text = CORPUS * 20_000
    data = text.encode()
    bounds = np.array([[0, len(data)], [0, 3], [5, 5], [0, len(data)]])
    end_id = TOKENIZER.special_tokens[END]
    ids, offsets = TOKENIZER.encode_documents(data, bounds, 3, end_id)
    assert np.flatnonzero(ids == end_id).tolist() == (offsets[1:] - 1).tolist()
    assert np.array_equal(ids[: offsets[1] - 1], TOKENIZER.encode_to_numpy(text))


def test_end_id_outside_the_vocabulary_and_bounds_outside_the_text_are_rejected() -> None:
    for end_id in (len(VOCAB) + 1, 65_536 + 3, -1):
        with pytest.raises(TokenizerError, match=f"end_id {end_id}"):
            TOKENIZER.encode_documents(b"ab", np.array([[0, 2]]), end_id=end_id)
    for bounds in ([[0, 9]], [[-1, 2]], [[2, 1]], [[0, 1], [1, 2**62]]):
        with pytest.raises(ValueError, match="bounds"):
            TOKENIZER.encode_documents(b"ab", np.array(bounds))


def test_the_hash_of_a_document_never_changes() -> None:
    # It assigns documents to splits. All small sizes, at every alignment.
    bounds = np.array([[size % 7, size % 7 + size] for size in range(200)])
    hashes = as_array(_native.hash_documents(bytes(range(256)), bounds), np.uint64)
    content = hashlib.sha256(hashes.astype("<u8").tobytes()).hexdigest()
    assert content == "54059535b5dce5a18bed81555a7a28e7c114e2810e9f8d407b178b8a1321ac2b"


def test_encoding_a_batch_while_another_thread_changes_the_list() -> None:
    texts = [CORPUS * 10] * 2000
    expected = TOKENIZER.encode_batch(list(texts))[0]
    stop = threading.Event()

    def shuffle() -> None:
        while not stop.is_set():
            texts[random.randrange(len(texts))] = "".join([CORPUS] * 10)

    thread = threading.Thread(target=shuffle)
    thread.start()
    try:
        for _ in range(5):
            assert np.array_equal(TOKENIZER.encode_batch(texts, 2)[0], expected)
    finally:
        stop.set()
        thread.join()


SMALL_VOCAB, SMALL_MERGES = train_bpe_reference("ab abba aab the a.b é <|x|> a\nb it's " * 3, 280)


@pytest.mark.slow
def test_ten_thousand_special_tokens_are_found() -> None:
    shuffled = random.Random(0)
    special_tokens = [f"<|{number}|>" for number in range(5_000)]
    special_tokens += [f"[{number}" for number in range(4_900)]
    special_tokens += ["<" + "x" * size for size in range(99)] + ["<|" + "long " * 20_000]
    tokenizer = with_special(SMALL_VOCAB, SMALL_MERGES, special_tokens)
    between = ["", " ", "the", "<", "\n"]
    parts = (shuffled.choice(special_tokens) + shuffled.choice(between) for _ in range(800))
    text = "".join(parts) + special_tokens[-1] + special_tokens[-1][:-1]
    expected = encode_reference(tokenizer.definition, text)
    assert tokenizer.encode(text) == expected
    assert tokenizer.encode_batch([text, text[7:]], 2)[0].tolist()[: len(expected)] == expected
    assert list(tokenizer.encode_iterable([text[:999], text[999:]])) == expected


def test_unlisted_special_tokens_are_text_and_missing_ones_are_appended() -> None:
    assert Tokenizer(dict(enumerate([*BYTES, b"<|y|>"])), []).encode("<|y|>") == list(b"<|y|>")
    vocab = dict(enumerate([*BYTES, b"<|b|>"]))
    tokenizer = Tokenizer(vocab, [], ["<|c|>", "<|b|>", "<|a|>"])
    assert len(vocab) == 257
    assert tokenizer.special_tokens == {"<|c|>": 257, "<|b|>": 256, "<|a|>": 258}
    assert tokenizer.vocab_size == len(tokenizer) == 259
    assert tokenizer.encode("<|a|><|b|>x<|c|>") == [258, 256, ord("x"), 257]


@functools.cache
def text_of(*pieces: str) -> str:
    """Long enough to be cut."""
    return "".join(random.Random(0).choices(pieces, k=500_000))


@pytest.mark.parametrize("pattern", NATIVE_PATTERNS, ids=lambda one: one.name)
@pytest.mark.parametrize(
    "special_tokens", [["a b"], ["b\na", "b\nab"], [" the a", "the"], ["a", " ", "\n"]]
)
def test_splitting_a_document_between_threads_keeps_special_tokens_whole(
    special_tokens: list[str], pattern: Pattern
) -> None:
    # All natural cuts of this text are inside special tokens or next to them.
    text = text_of("a b", "b\na", "b\nab", " the a", "the", "a", " ", "\n", "ab", "1 2", ".")
    tokenizer = with_special(SMALL_VOCAB, SMALL_MERGES, special_tokens, pattern)
    expected = tokenizer.encode_to_numpy(text)
    ids, _ = tokenizer._encoder.encode_batch([text], 3, -1)
    assert np.array_equal(as_array(ids, tokenizer.id_type), expected)
    assert expected[:500].tolist() == encode_reference(tokenizer.definition, text[:5_000])[:500]


def test_a_special_token_outside_the_vocabulary_is_rejected() -> None:
    with pytest.raises(ValueError, match="'<x>' has id 999, beyond the vocabulary"):
        _native.Encoder(BYTES, [], [(b"<x>", 999)], GPT2.splitter, False)
