"""Many documents at once: the ids of each are those it has alone, for any number of threads."""

import random
import threading

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from groundup import _native
from groundup.errors import TokenizerError
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.definition import TokenizerDefinition
from groundup.tokenizer.native import as_array
from groundup.tokenizer.patterns import CL100K, GPT2, O200K, Pattern, find_pattern
from groundup.tokenizer.reference import split_special_tokens
from groundup.tokenizer.training import train_tokenizer

END = "<|end|>"
CORPUS = "the theme of the thesis, it's then 123 there\n\n  and thé 字字 😀 thus\nsome more of it."


def train_without_splitting() -> Tokenizer:
    """A vocabulary in which most neighbours merge, so that ids tell where the text was cut."""
    shuffled = random.Random(0)
    pieces = [*CORPUS.split(" "), *CORPUS, " ", "  ", "\n", "\u3000"]
    text = "".join(shuffled.choices(pieces, k=5000))
    return train_tokenizer([text.encode()], 1500, [END], pattern=find_pattern(r"(?s).+"))[0]


WITHOUT_SPLITTING = train_without_splitting()
VOCAB, MERGES = WITHOUT_SPLITTING.vocab, WITHOUT_SPLITTING.merges


def make_tokenizer(pattern: Pattern) -> Tokenizer:
    return Tokenizer.from_definition(
        TokenizerDefinition(VOCAB, MERGES, {END: len(VOCAB) - 1}, pattern)
    )


TOKENIZERS = {pattern.name: make_tokenizer(pattern) for pattern in (GPT2, CL100K, O200K)}
TOKENIZER = TOKENIZERS["gpt2"]


def long_text(kind: str) -> str:
    if kind == "words":
        return CORPUS * 20_000
    if kind == "no place to cut":
        return "a" * 2_000_000
    if kind == "special tokens":
        return (f"the {END}{END} there\n{END}" + "字字" * 20) * 15_000
    return "  \n \u3000" * 300_000


@pytest.mark.parametrize("kind", ["words", "no place to cut", "special tokens", "white space"])
@pytest.mark.parametrize("name", ["gpt2", "cl100k", "o200k"])
def test_a_huge_document_is_shared_by_threads_without_a_seam(name: str, kind: str) -> None:
    tokenizer = TOKENIZERS[name]
    text = long_text(kind)
    expected = tokenizer.encode_to_numpy(text)
    for num_threads in (2, 3):
        ids, offsets = tokenizer.encode_batch(["é", text, "", text[:100], text], num_threads)
        assert np.array_equal(ids[offsets[1] : offsets[2]], expected)
        assert np.array_equal(ids[offsets[4] :], expected)
        assert ids[: offsets[1]].tolist() == tokenizer.encode("é")
        assert offsets[2] == offsets[3]
        assert ids[offsets[3] : offsets[4]].tolist() == tokenizer.encode(text[:100])


@pytest.mark.parametrize("bad", [None, 5, ["nested"]])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_what_is_no_text_is_refused_and_nothing_hangs(bad: object, num_threads: int) -> None:
    texts = [*["the theme"] * 100, bad, *["the theme"] * 100]
    with pytest.raises(TypeError):
        TOKENIZER._encoder.encode_batch(texts, num_threads, -1)  # type: ignore[arg-type]
    assert TOKENIZER.encode_batch(["the"], num_threads)[0].tolist() == TOKENIZER.encode("the")
    with pytest.raises(TokenizerError, match="num_threads is 0"):
        TOKENIZER.encode_batch(["text"], num_threads=0)


def test_the_end_follows_a_huge_document_once() -> None:
    text = CORPUS * 20_000
    data = text.encode()
    bounds = np.array([[0, len(data)], [0, 3], [5, 5], [0, len(data)]])
    end_id = TOKENIZER.special_tokens[END]
    ids, offsets = TOKENIZER.encode_documents(data, bounds, 3, end_id)
    assert np.flatnonzero(ids == end_id).tolist() == (offsets[1:] - 1).tolist()
    assert np.array_equal(ids[: offsets[1] - 1], TOKENIZER.encode_to_numpy(text))


@pytest.mark.parametrize("end_id", [len(VOCAB), 65_536 + 3, -1])
def test_an_end_outside_the_vocabulary_is_refused(end_id: int) -> None:
    with pytest.raises(TokenizerError, match=f"end_id {end_id}"):
        TOKENIZER.encode_documents(b"ab", np.array([[0, 2]]), end_id=end_id)


@pytest.mark.parametrize("bounds", [[[0, 9]], [[-1, 2]], [[2, 1]], [[0, 1], [1, 2**62]]])
def test_bounds_outside_the_text_are_refused(bounds: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="bounds"):
        TOKENIZER.encode_documents(b"ab", np.array(bounds))


@hypothesis.given(
    text=st.text("ab<|>é\n", max_size=60),
    separators=st.sets(st.sampled_from(["<|>", "<", "ab", "<|><|>", "é", "\n\n"]), max_size=4),
)
def test_documents_lie_between_separators(text: str, separators: set[str]) -> None:
    data = text.encode()
    bounds = _native.find_documents(data, [separator.encode() for separator in sorted(separators)])
    pairs = as_array(bounds, np.int64).reshape(-1, 2).tolist()
    expected = [
        piece for piece, is_special in split_special_tokens(text, separators) if not is_special
    ]
    assert [data[begin:end].decode() for begin, end in pairs] == expected


def hash_document(document: bytes) -> int:
    """What shards are split by, spelled out: it may never change."""

    def mix(left: int, right: int) -> int:
        product = left * right
        return (product ^ product >> 64) & (2**64 - 1)

    all_bits = 2**64 - 1
    first, second = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03
    seed = len(document) * first & all_bits
    lanes = [seed, seed ^ first, seed ^ second, seed ^ all_bits]
    for number, place in enumerate(range(0, len(document), 8)):
        word = int.from_bytes(document[place : place + 8], "little")
        lanes[number % 4] = mix(lanes[number % 4] ^ word, second)
    hash = lanes[0]
    for lane in lanes[1:]:
        hash = mix(hash ^ lane, second ^ hash)
    return mix(hash ^ first, second)


@hypothesis.given(data=st.binary(max_size=99), begin=st.integers(0, 99), size=st.integers(0, 99))
def test_the_hash_of_a_document_never_changes(data: bytes, begin: int, size: int) -> None:
    begin = min(begin, len(data))
    document = data[begin : begin + size]
    bounds = np.array([[0, len(data)], [begin, begin + len(document)]])
    hashes = as_array(_native.hash_documents(data, bounds), np.uint64).tolist()
    assert hashes == [hash_document(data), hash_document(document)]


def test_the_hash_of_a_known_document_is_known() -> None:
    assert hash_document(b"Once upon a time") == 0x02332822A938F044


def test_a_batch_may_be_encoded_while_its_list_changes() -> None:
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
