"""Every code point: its class, how each scanner treats it, and what is valid UTF-8."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import regex

from groundup import _native
from groundup.tokenizer.native import as_array
from groundup.tokenizer.patterns import CL100K, GPT2, LLAMA3, O200K, QWEN2, Pattern

# As native/unicode.h numbers them; everything else is 0.
CLASSES = {
    1: r"[\p{Lu}\p{Lt}]+",
    2: r"\p{Ll}+",
    3: r"[\p{Lm}\p{Lo}]+",
    4: r"\p{M}+",
    5: r"\p{N}+",
    6: r"\s+",
}
NATIVE_PATTERNS = (GPT2, CL100K, LLAMA3, QWEN2, O200K)
SURROGATES = range(0xD800, 0xE000)


def expected_classes() -> np.ndarray:
    """The class of every code point by the regex package, from one string of all of them."""
    everything = "".join(map(chr, range(0x110000)))
    classes = np.zeros(0x110000, np.uint8)
    for number, expression in CLASSES.items():
        for match in regex.finditer(expression, everything):
            classes[match.start() : match.end()] = number
    return classes


def test_every_code_point_has_the_class_the_regex_package_gives_it() -> None:
    classes = np.fromiter(map(_native.class_of, range(0x110000)), np.uint8)
    wrong = np.flatnonzero(classes != expected_classes())
    assert wrong.size == 0, [f"U+{code_point:04X}" for code_point in wrong[:10].tolist()]


def test_beyond_the_last_code_point_there_is_no_class() -> None:
    assert _native.class_of(0x110000) == _native.class_of(2**31) == 0


def split_by_regex(pattern: Pattern, text: str) -> np.ndarray:
    sizes = [len(piece.encode()) for piece in pattern.split(text)]
    return np.cumsum(sizes, dtype=np.uint64)


def assert_same_cuts(pattern: Pattern, text: str) -> None:
    expected = split_by_regex(pattern, text)
    for vectors in _native.vectors()[1]:
        ends = as_array(_native.split(text, pattern.name, vectors), np.uint64)
        if np.array_equal(ends, expected):
            continue
        size = min(len(ends), len(expected))
        place = int(np.argmax(ends[:size] != expected[:size]))
        begin, data = int(expected[max(place - 1, 0)]), text.encode()
        pytest.fail(f"{pattern.name} cuts {data[begin : begin + 24]!r} differently at its start")


def one_of_each_kind() -> list[str]:
    """Where the class changes, both sides; and a few of each block in between."""
    edges = np.flatnonzero(np.diff(expected_classes())) + 1
    chosen = {*edges.tolist(), *(edges - 1).tolist(), *range(0, 0x110000, 997)}
    return [chr(code_point) for code_point in sorted(chosen - set(SURROGATES))]


@pytest.mark.parametrize("pattern", NATIVE_PATTERNS, ids=lambda pattern: pattern.name)
def test_a_character_of_each_kind_is_cut_right_in_every_context(pattern: Pattern) -> None:
    contexts = (
        "a{0}b",
        " {0}{0} ",
        "{0}A'{0}s",
        "1{0}\n",
        "  {0}  \n{0} \t{0}",
        "A{0}'S{0}'ll{0}.\r",
    )
    characters = one_of_each_kind()
    for first in range(0, len(characters), 512):
        chunk = characters[first : first + 512]
        text = "".join(context.format(character) for character in chunk for context in contexts)
        assert_same_cuts(pattern, text)


def test_every_character_is_cut_right_between_a_letter_and_a_digit() -> None:
    # Beyond the second plane nearly nothing is assigned.
    for first in range(0, 0x30000, 0x8000):
        code_points = (c for c in range(first, first + 0x8000) if c not in SURROGATES)
        assert_same_cuts(O200K, "".join(f"a{chr(code_point)}1" for code_point in code_points))


def first_invalid(data: bytes) -> int:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start
    return -1


@hypothesis.given(
    st.lists(
        st.one_of(
            st.text(max_size=3).map(str.encode),
            st.binary(max_size=4),
            st.sampled_from(
                [b"a" * 31, b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"]
            ),
        ),
        max_size=20,
    ).map(b"".join)
)
@hypothesis.settings(max_examples=200)
def test_invalid_utf8_is_found_where_python_finds_it(data: bytes) -> None:
    assert _native.find_invalid_utf8(data) == first_invalid(data)


def test_all_starts_of_a_character_are_judged_as_python_does() -> None:
    for lead in range(0x80, 0x100):
        for second in range(0x70, 0x100, 5):
            for rest in (b"", b"\x80", b"\x80\x80", b"\xbf\xbf", b"\x80A", b"A"):
                data = b"x" * 30 + bytes([lead, second]) + rest
                assert _native.find_invalid_utf8(data) == first_invalid(data)
