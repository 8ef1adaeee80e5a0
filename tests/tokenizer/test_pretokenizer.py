"""The native core splits text as the `regex` package does, with any character in any place."""

import operator
import os
import subprocess
import sys
from functools import cache

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import regex
from oracles import PUBLISHED, split_by_regex

from groundup import _native
from groundup.tokenizer.native import as_array
from groundup.tokenizer.patterns import Pattern

for_every_pattern = pytest.mark.parametrize(
    "pattern",
    [Pattern(name, stages) for name, stages in PUBLISHED.items()],
    ids=lambda one: one.name,
)

# Each line is one kind of text that patterns distinguish; kinds are sampled uniformly.
KINDS = [
    ["a", "b", "xyz", "é", "ß", "ж", "𝐚"],
    ["A", "Z", "É", "Ж", "𝐀", "ǅ"],
    ["字", "ไ", "ʰ", "あ", "𠀀", "가"],
    ["́", "̈", "ั", "゙", "\U000e0100"],
    ["1", "23", "456", "7890", "٣", "Ⅷ", "²", "𝟗"],
    [".", "!", "/", "//", "—", "😀", "👩‍👩‍👧", "€", "\x00", "\x1c", "\x7f", "\u200b", "\ufffd"],
    ["'", "''", "’"],
    ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'l", "'r", "'v"],
    ["'S", "'T", "'Re", "'vE", "'M", "'LL", "'lL", "'D", "'ſ", "'ſt", "ſ"],
    [" ", " ", " ", "  ", "   "],
    ["\t", "\x0b", "\x0c", "\x85", "\xa0", "\u2003", "\u2028", "\u3000"],
    ["\n", "\r", "\r\n", "\n\n", " \n", "\n ", " \n "],
]
PIECES = st.one_of([st.sampled_from(kind) for kind in KINDS])
SCANNED = ("gpt2", "cl100k", "llama3", "qwen2", "o200k", "deepseek")
# Runs of about the length of a block (64 bytes) or a window (4096 bytes).
LENGTHS = st.builds(
    operator.add, st.sampled_from([0, 63, 126, 4085, 4160, 8190]), st.integers(-5, 9)
)
RUNS = st.builds(lambda piece, length: piece * (length // len(piece.encode()) + 1), PIECES, LENGTHS)
TEXTS = st.one_of(
    st.lists(PIECES, max_size=40).map("".join),
    st.lists(PIECES | RUNS, max_size=8).map("".join),
    st.text(max_size=40),
    st.text(st.characters(max_codepoint=0x2FF), max_size=80),
)


# All instruction sets of this CPU; the first is portable C++, which has no scanners.
IN_USE, AVAILABLE = _native.vectors()


@cache
def splitters(pattern: Pattern) -> list[_native.Splitter]:
    kinds = AVAILABLE if pattern.name in SCANNED else AVAILABLE[:1]
    return [_native.Splitter(pattern.stages, (), pattern.name, vectors) for vectors in kinds]


def native_split(splitter: _native.Splitter, data: str | bytes) -> list[int]:
    bounds = as_array(splitter.split(data), np.uint64).reshape(-1, 2)
    assert np.array_equal(bounds[1:, 0], bounds[:-1, 1])
    ends: list[int] = bounds[:, 1].tolist()
    return ends


def assert_cut_as_by_regex(pattern: Pattern, text: str) -> None:
    pieces = split_by_regex(pattern.stages, text)
    expected = np.cumsum([len(piece.encode()) for piece in pieces]).tolist()
    for splitter in splitters(pattern):
        assert native_split(splitter, text) == expected


@for_every_pattern
@hypothesis.given(text=TEXTS)
@hypothesis.settings(max_examples=150)
def test_text_splits_as_with_the_regex_package(pattern: Pattern, text: str) -> None:
    assert_cut_as_by_regex(pattern, text)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCANNED)
def test_text_near_block_boundaries_splits_correctly(name: str) -> None:
    pattern = Pattern(name, PUBLISHED[name])
    for snippet in ("'ll's", "\u3000\u3000x", "é字😀", "  \xa0 'd", "9\u2028\n\u3000 ", "A字B'S"):
        for border in (64, 4096):
            for filler in ("a", " ", ".", "é "):
                for size in range(border - 14, border + 2):
                    prefix = (filler * size).encode()[:size].decode("utf-8", "ignore")
                    assert_cut_as_by_regex(pattern, prefix + snippet + prefix)


@pytest.mark.slow
@for_every_pattern
@hypothesis.given(
    parts=st.lists(
        st.one_of(
            st.binary(max_size=6),
            st.sampled_from(
                [b"\xf4\xbf\xbf\xbf", b"\xed\xa0\x80", b"\xc1\xbf", b"\xf0\x80\x80\x80"]
            ),
            PIECES.map(str.encode),
            PIECES.map(lambda piece: piece.encode()[:-1]),
            st.integers(50, 70).map(lambda size: b"a" * size),
            st.integers(4080, 4100).map(lambda size: b"\xe3" * size),
        ),
        max_size=12,
    )
)
def test_invalid_utf8_is_split_without_gaps(pattern: Pattern, parts: list[bytes]) -> None:
    data = b"".join(parts)
    for splitter in splitters(pattern):
        ends = native_split(splitter, data)
        assert all(begin < end for begin, end in zip([0, *ends], ends, strict=False))
        assert ends[-1:] == ([len(data)] if data else [])


@pytest.mark.slow
@for_every_pattern
@hypothesis.given(text=TEXTS, filler=RUNS, start=st.integers(0, 9000))
def test_a_safe_cut_does_not_change_pre_tokens(
    pattern: Pattern, text: str, filler: str, start: int
) -> None:
    whole = (text + filler + text).encode()
    splitter = splitters(pattern)[-1]
    counter = _native.WordCounter(splitter, [], 1)
    cuts = [counter.find_cut(whole, start), counter.find_last_cut(whole)]
    assert min(max(start, 1), len(whole)) <= cuts[0] <= len(whole)
    for cut in cuts:
        left, right = native_split(splitter, whole[:cut]), native_split(splitter, whole[cut:])
        assert left + [cut + end for end in right] == native_split(splitter, whole)


def run_with(vectors: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"GROUNDUP_VECTORS": vectors}
    return subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True)


def test_the_best_instruction_set_is_used_unless_the_environment_names_another() -> None:
    code = "from groundup import _native; print(_native.vectors()[0])"
    assert AVAILABLE[0] == "plain"
    for asked, expected in [("", AVAILABLE[-1]), *((name, name) for name in AVAILABLE)]:
        assert run_with(asked, "-c", code).stdout.strip() == expected
    done = run_with("mmx", "-m", "groundup", "tokenizer", "inspect", "none.json")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and "'mmx'" in done.stderr and "plain" in done.stderr


# CharClass in native/unicode.h; everything else is 0.
CLASSES = (r"[\p{Lu}\p{Lt}]+", r"\p{Ll}+", r"[\p{Lm}\p{Lo}]+", r"\p{M}+", r"\p{N}+", r"\s+")


def test_code_point_classes_equal_those_of_the_regex_package() -> None:
    everything = "".join(map(chr, range(0x110000)))
    expected = np.zeros(0x110000, np.uint8)
    for number, expression in enumerate(CLASSES, start=1):
        for match in regex.finditer(expression, everything):
            expected[match.start() : match.end()] = number
    classes = np.fromiter(map(_native.class_of, range(0x110000)), np.uint8)
    wrong = np.flatnonzero(classes != expected)
    assert wrong.size == 0, [f"U+{code_point:04X}" for code_point in wrong[:10].tolist()]
    assert _native.class_of(0x110000) == _native.class_of(2**31) == 0


@pytest.mark.slow
@for_every_pattern
def test_characters_of_all_classes_split_correctly_in_every_context(pattern: Pattern) -> None:
    # The scanners have byte classes of their own. The other patterns share one automaton's classes,
    # and each tests a different part of them.
    is_scanned, number = pattern.name in SCANNED, list(PUBLISHED).index(pattern.name)
    codes = [*range(0x3000)] if is_scanned else [*range(number % 4, 0x3000, 4)]
    codes += range(0x3000, 0x110000, 97)
    for first in range(0, len(codes), 512):
        chunk = [chr(code) for code in codes[first : first + 512] if not 0xD800 <= code < 0xE000]
        parts = (f"a{one}1 {one}{one}\n{one}A'{one}s  {one}\n\t{one}'ll{one}." for one in chunk)
        assert_cut_as_by_regex(pattern, "".join(parts))


def first_invalid(data: bytes) -> int:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start
    return -1


def test_invalid_utf8_is_found_at_the_same_offset_as_by_python() -> None:
    for lead in range(0x80, 0x100):
        for second in range(0x70, 0x100, 5):
            for rest in (b"", b"\x80", b"\x80\x80", b"\xbf\xbf", b"\x80A", b"A"):
                for size in (7, 30):
                    data = b"x" * size + bytes([lead, second]) + rest
                    assert _native.find_invalid_utf8(data) == first_invalid(data)
                    assert _native.find_invalid_utf8(data + b"y" * size) == first_invalid(
                        data + b"y"
                    )
