"""The native scanners cut as the regex package does, wherever a character stands in the window."""

import os
import subprocess
import sys

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from groundup import _native
from groundup.tokenizer.native import as_array
from groundup.tokenizer.patterns import CL100K, GPT2, LLAMA3, O200K, QWEN2, Pattern

NATIVE_PATTERNS = (GPT2, CL100K, LLAMA3, QWEN2, O200K)
for_every_pattern = pytest.mark.parametrize(
    "pattern", NATIVE_PATTERNS, ids=lambda pattern: pattern.name
)

# Each line is one kind of thing a pattern decides by; a kind is drawn first, then one of it.
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
TEXTS = st.one_of(
    st.lists(PIECES, max_size=40).map("".join),
    st.text(max_size=40),
    st.text(st.characters(max_codepoint=0x2FF), max_size=80),
)
# Runs as long as a block of 64 bytes or a window of 4096, a little shorter or a little longer.
LENGTHS = st.one_of(
    st.integers(1, 5),
    st.integers(58, 70),
    st.integers(120, 134),
    st.integers(4060, 4110),
    st.integers(4150, 4170),
    st.integers(8180, 8200),
)
RUNS = st.builds(lambda piece, length: piece * (length // len(piece.encode()) + 1), PIECES, LENGTHS)


# Every scanner that this processor can run, the portable one first.
IN_USE, AVAILABLE = _native.vectors()


def native_split(pattern: Pattern, data: str | bytes, vectors: str = "") -> list[int]:
    return as_array(_native.split(data, pattern.name, vectors), np.uint64).tolist()


def assert_cut_as_by_regex(pattern: Pattern, text: str) -> None:
    expected = np.cumsum([len(piece.encode()) for piece in pattern.split(text)]).tolist()
    for vectors in AVAILABLE:
        assert native_split(pattern, text, vectors) == expected


@for_every_pattern
@hypothesis.given(text=TEXTS)
@hypothesis.settings(max_examples=300)
def test_text_is_cut_as_by_the_regex_package(pattern: Pattern, text: str) -> None:
    assert_cut_as_by_regex(pattern, text)


@for_every_pattern
@hypothesis.given(runs=st.lists(RUNS, min_size=1, max_size=4), text=TEXTS)
def test_cuts_do_not_depend_on_the_position_in_a_window(
    pattern: Pattern, runs: list[str], text: str
) -> None:
    assert_cut_as_by_regex(pattern, "".join(runs) + text + runs[0])


@for_every_pattern
def test_every_place_near_a_border_is_cut_right(pattern: Pattern) -> None:
    for snippet in ("'ll's", "\u3000\u3000x", "é字😀", "  \xa0 'd", "9\u2028\n\u3000 ", "A字B'S"):
        for border in (64, 4096):
            for filler in ("a", " ", ".", "é "):
                for size in range(border - 14, border + 2):
                    prefix = (filler * size).encode()[:size].decode("utf-8", "ignore")
                    assert_cut_as_by_regex(pattern, prefix + snippet + prefix)


@for_every_pattern
@hypothesis.given(
    parts=st.lists(
        st.one_of(
            st.binary(max_size=6),
            PIECES.map(str.encode),
            PIECES.map(lambda piece: piece.encode()[:-1]),
            st.integers(50, 70).map(lambda size: b"a" * size),
            st.integers(4080, 4100).map(lambda size: b"\xe3" * size),
        ),
        max_size=12,
    )
)
def test_bytes_that_are_no_utf8_are_covered_too(pattern: Pattern, parts: list[bytes]) -> None:
    data = b"".join(parts)
    for vectors in AVAILABLE:
        ends = native_split(pattern, data, vectors)
        assert all(begin < end for begin, end in zip([0, *ends], ends, strict=False))
        assert ends[-1:] == ([len(data)] if data else [])


@hypothesis.given(text=TEXTS, filler=RUNS, start=st.integers(0, 9000))
def test_a_safe_cut_changes_no_pre_token_of_any_pattern(text: str, filler: str, start: int) -> None:
    whole = (text + filler + text).encode()
    cut = _native.WordCounter("gpt2", [], 1).find_cut(whole, start)
    assert min(max(start, 1), len(whole)) <= cut <= len(whole)
    for pattern in NATIVE_PATTERNS:
        left, right = native_split(pattern, whole[:cut]), native_split(pattern, whole[cut:])
        assert left + [cut + end for end in right] == native_split(pattern, whole)


def test_an_unknown_pattern_is_an_error() -> None:
    with pytest.raises(ValueError, match="no native scanner for the pattern 'gpt3'"):
        _native.split("text", "gpt3")


def run_with(vectors: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"GROUNDUP_VECTORS": vectors}
    return subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True)


def test_vectors_are_the_best_there_are_unless_the_environment_names_others() -> None:
    code = "from groundup import _native; print(_native.vectors()[0])"
    assert AVAILABLE[0] == "plain"
    for asked, expected in [("", AVAILABLE[-1]), *((name, name) for name in AVAILABLE)]:
        assert run_with(asked, "-c", code).stdout.strip() == expected


def test_vectors_that_the_processor_lacks_are_an_error_that_names_those_it_has() -> None:
    done = run_with("mmx", "-m", "groundup", "tokenizer", "inspect", "none.json")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and "'mmx'" in done.stderr and "plain" in done.stderr
