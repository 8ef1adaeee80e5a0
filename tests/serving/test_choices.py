"""The text of a choice: properties of pieces, offsets and stop strings, for any ids."""

from collections.abc import Sequence
from typing import Any

import hypothesis
from hypothesis import strategies as st

from groundup.generation import LanguageModel
from groundup.generation.request import NewToken
from groundup.serving.choices import ChoiceText, Entry, Piece, TokenSpelling
from groundup.tokenizer import Tokenizer

IDS = st.lists(st.integers(0, 303), max_size=40)
STOPS = st.lists(st.sampled_from(["a", "the", " c", "é", "雨 f", "t.", "\ufffd"]), max_size=3)


def write(
    tokenizer: Tokenizer, ids: Sequence[int], stop: Sequence[str], **options: Any
) -> tuple[ChoiceText, list[Piece]]:
    writer = ChoiceText(tokenizer, stop, **options)
    pieces: list[Piece] = []
    for number, id in enumerate(ids, start=1):
        reason: Any = "length" if number == len(ids) else None
        pieces += writer.push(NewToken(id, -1.0, (), reason))
        if writer.is_done:
            break
    return writer, pieces


def cut(tokenizer: Tokenizer, ids: Sequence[int], stop: Sequence[str]) -> str:
    """The expected text: that of all ids, up to the first stop string."""
    text = tokenizer.decode([id for id in ids if id < tokenizer.vocab_size])
    return text[: min((text.find(s) for s in stop if s in text), default=len(text))]


@hypothesis.given(ids=IDS, stop=STOPS)
def test_pieces_join_to_the_text_before_the_stop_string_and_entries_have_offsets(
    language_model: LanguageModel, ids: list[int], stop: list[str]
) -> None:
    tokenizer = language_model.tokenizer
    expected = cut(tokenizer, ids, stop)
    for with_entries in (False, True):
        writer, pieces = write(tokenizer, ids, stop, with_entries=with_entries)
        assert "".join(piece.text for piece in pieces) == expected
        if ids:
            found = any(s in cut(tokenizer, ids, []) for s in stop)
            assert writer.finish_reason == ("stop" if found else "length")
    # A partial character at the end belongs to no token.
    if pieces and pieces[-1].entry is None:
        assert pieces.pop() == Piece("\ufffd")
    entries = [piece.entry for piece in pieces if piece.entry is not None]
    assert [entry.id for entry in entries] == ids[: len(pieces)]
    assert writer.finish_reason != "length" or len(entries) == len(ids) == writer.num_tokens
    place = 0
    for piece, entry in zip(pieces, entries, strict=True):
        assert entry.begin <= place <= entry.end
        place += len(piece.text)


def test_a_token_is_released_once_it_cannot_begin_a_stop_string(
    language_model: LanguageModel,
) -> None:
    tokenizer = language_model.tokenizer
    writer = ChoiceText(tokenizer, ["cab"], with_entries=True)
    shown = []
    for text in ("x", "c", "a", "t"):
        (id,) = tokenizer.encode(text)
        shown.append("|".join(piece.text for piece in writer.push(NewToken(id, -1.0, (), None))))
    assert shown == ["x", "", "", "c|a|t"]


def test_top_logprobs_include_the_sampled_token_and_lose_none(
    language_model: LanguageModel,
) -> None:
    spelling = TokenSpelling(language_model.tokenizer)
    assert (spelling[0xE9], spelling[303]) == ("bytes:\\xe9", "<id 303>")
    named, ids = spelling.likeliest(Entry(97, -3.0, ((98, -1.0), (0xE9, float("-inf"))), 0, 1))
    assert named == {"b": -1.0, "bytes:\\xe9": -9999.0, "a": -3.0} and ids == [98, 0xE9, 97]
    named, ids = spelling.likeliest(Entry(97, -3.0, ((97, -3.0),), 0, 1))
    assert named == {"a": -3.0} and ids == [97]
