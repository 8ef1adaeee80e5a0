"""Decoding accepts ids in any container and names every error."""

from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from oracles import BYTES

from groundup.errors import TokenizerError
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.definition import TokenizerDefinition
from groundup.tokenizer.reference import decode_reference, train_bpe_reference

TEXT = "the theme of thé thesis — 字字😀😀 don't, 12345\n\n  and then there's ab abab aabb bbaa"
TOKENIZER = Tokenizer(*train_bpe_reference(TEXT * 2, 296))


@pytest.mark.parametrize(
    "dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">u2", ">i4", "<u8"]
)
def test_ids_of_every_integer_type_decode(dtype: str) -> None:
    ids = np.array([104, 105, 32, 33] * 20, dtype=dtype)
    assert TOKENIZER.decode(ids) == "hi !" * 20
    assert TOKENIZER.decode(ids[::2]) == "h " * 20
    assert TOKENIZER.decode_bytes(ids[:0]) == b""


def test_ids_of_any_iterable_decode() -> None:
    torch = pytest.importorskip("torch")
    ids = TOKENIZER.encode(TEXT)
    forms: list[Any] = [ids, tuple(ids), iter(ids), np.array(ids), [np.int32(id) for id in ids]]
    forms += [torch.tensor(ids, dtype=torch.int32), np.array(ids, np.uint16).data]
    for same in forms:
        assert TOKENIZER.decode(same) == TEXT
    assert TOKENIZER.decode([]) == TOKENIZER.decode(iter(())) == ""
    assert TOKENIZER.decode(np.array([])) == TOKENIZER.decode(torch.tensor([])) == ""


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([296], "296 is not an id"),
        ([1, 2, -1], "-1 is not an id"),
        (np.array([65, 2**40]), f"{2**40} is not an id"),
        (np.array([-5], np.int8), "-5 is not an id"),
        (np.array([700], np.uint16), "700 is not an id"),
        (np.array([2**63], np.uint64), "is not an id"),
        ([2**64], "is not an id"),
        ([65.0], "integer"),
        (np.array([65.0]), "type float64"),
        (np.array([[65]]), "2 dimensions"),
        (np.array(65), "0 dimensions"),
        (np.array([True]), "type bool"),
        ("text", "integer"),
        ([None], "integer"),
        (65, "integer"),
    ],
)
def test_unknown_ids_are_rejected(ids: Any, message: str) -> None:
    for decode in (TOKENIZER.decode, TOKENIZER.decode_bytes):
        with pytest.raises(TokenizerError, match=message):
            decode(ids)


def test_an_id_in_a_gap_of_the_vocabulary_is_rejected() -> None:
    definition = TokenizerDefinition({**dict(enumerate(BYTES)), 300: b"<x>"}, [], {"<x>": 300})
    tokenizer = Tokenizer.from_definition(definition)
    assert tokenizer.decode([300, 65]) == "<x>A"
    for ids in ([256], np.array([299])):
        with pytest.raises(TokenizerError, match=f"{ids[0]} is not an id"):
            tokenizer.decode(ids)


@hypothesis.given(ids=st.lists(st.integers(0, 295), max_size=30))
def test_decoding_equals_the_reference(ids: list[int]) -> None:
    expected = decode_reference(TOKENIZER.definition, ids)
    assert TOKENIZER.decode(ids) == expected
