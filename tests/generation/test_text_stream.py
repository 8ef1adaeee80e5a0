"""Incremental decoding: whole characters, no stop strings, the same for any split into tokens."""

from hypothesis import example, given
from hypothesis import strategies as st

from groundup.generation.text_stream import TextStream
from groundup.tokenizer import Tokenizer

BYTES = {id: bytes([id]) for id in range(256)}
EURO = "€".encode()
# Tokens with several characters, with part of one, and with parts of two.
MERGES = [(b"a", b"b"), (b"ab", b"a"), (EURO[:1], EURO[1:2]), (b"b", EURO[:1]), (EURO[2:], b"a")]
MERGED = {256 + index: left + right for index, (left, right) in enumerate(MERGES)}
TOKENIZER = Tokenizer(BYTES | MERGED, MERGES)


def cut(text: str, stop: list[str]) -> str:
    """The text up to the stop string that is completed first."""
    for end in range(len(text) + 1):
        ending = [s for s in stop if text[:end].endswith(s)]
        if ending:
            return text[: end - max(map(len, ending))]
    return text


small_text = st.text(alphabet="ab€é\n", max_size=12)
stops = st.lists(st.text(alphabet="ab€é\n", min_size=1, max_size=4), max_size=3)


@example(text="ab", stop=["b", "a"])
@given(text=small_text, stop=stops)
def test_pieces_join_to_the_text_cut_at_the_first_stop_string(text: str, stop: list[str]) -> None:
    expected = cut(text, stop)
    # The split into tokens must not matter.
    for ids in (list(text.encode()), TOKENIZER.encode(text)):
        stream, given_out = TextStream(TOKENIZER, stop), ""
        for id in ids:
            given_out += stream.push(id)
            assert expected.startswith(given_out)
        assert given_out + stream.finish() == expected
        assert stream.stopped == any(s in text for s in stop)


def test_text_is_returned_as_soon_as_it_is_certain() -> None:
    stream = TextStream(TOKENIZER, ["END"])
    assert [stream.push(id) for id in b"abEN."] == ["a", "b", "", "", "EN."]
    assert [stream.push(id) for id in "é€".encode()] == ["", "é", "", "", "€"]
    assert [stream.push(id) for id in b"EEND more"] == ["", "E", "", "", "", "", "", "", ""]
    assert stream.stopped and stream.finish() == ""
    # An id without a token decodes to nothing.
    assert TextStream(TOKENIZER).push(TOKENIZER.vocab_size) == ""
