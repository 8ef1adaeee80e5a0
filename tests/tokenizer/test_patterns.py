"""Split patterns: how they split, their names and spellings, and invalid patterns."""

import hypothesis
import hypothesis.strategies as st
import pytest
from oracles import CL100K_IN_TIKTOKEN, NATIVE_PATTERNS, PATTERNS

from groundup.errors import TokenizerError
from groundup.tokenizer.patterns import (
    CL100K,
    DEEPSEEK,
    GPT2,
    LLAMA3,
    O200K,
    QWEN2,
    Pattern,
    find_pattern,
    find_staged_pattern,
    superword_pattern,
)

TIKTOKEN_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
# The characters that patterns distinguish: letters, marks, digits, quotes, newlines and spaces.
CHARACTERS = "aZéßſǅʰж字ไ ́1٣Ⅷ²'’.,/!😀 \t\n\r\x0b\x1c\x85\xa0\u2028\u3000"
PIECES = st.sampled_from([*CHARACTERS, "'s", "'LL", "\r\n", "  ", "123"])
# Engines implement different versions of Unicode: exclude code points that this Python does not
# know, and U+0295, whose class has changed.
KNOWN = st.characters(exclude_categories=["Cn", "Cs"], exclude_characters="\u0295")
TEXTS = st.one_of(st.lists(PIECES, max_size=30).map("".join), st.text(KNOWN, max_size=30))


@pytest.mark.parametrize(
    ("pattern", "text", "pre_tokens"),
    [
        (GPT2, "Hello  world!", ["Hello", " ", " world", "!"]),
        (GPT2, "I'll say it's 2024", ["I", "'ll", " say", " it", "'s", " 2024"]),
        (GPT2, "I'LL", ["I", "'", "LL"]),
        (CL100K, "I'LL", ["I", "'LL"]),
        (CL100K, "12345", ["123", "45"]),
        (CL100K, "a \n \n", ["a", " \n \n"]),
        (CL100K, "a  \n  ", ["a", "  \n  "]),
        (LLAMA3, "a  \n  ", ["a", "  \n", "  "]),
        (QWEN2, "12345", ["1", "2", "3", "4", "5"]),
        (O200K, "helloWorld's", ["hello", "World's"]),
        (O200K, "a/b//\n", ["a", "/b", "//\n"]),
        (DEEPSEEK, "x12345字字y", ["x", "123", "45", "字字", "y"]),
        (find_pattern(r"[a-z]+"), "ab12cd-", ["ab", "12", "cd", "-"]),
        (find_pattern(r"(a)(b)"), "cabc", ["c", "ab", "c"]),
    ],
)
def test_patterns_split_like_the_published_ones(
    pattern: Pattern, text: str, pre_tokens: list[str]
) -> None:
    assert pattern.split(text) == pre_tokens


BEHAVIOURS = {
    "isolated": ("isolated", False),
    "removed": ("removed", False),
    "kept": ("removed", True),
    "merged with previous": ("merged_with_previous", False),
    "merged with next": ("merged_with_next", False),
    "contiguous": ("contiguous", True),
}


@pytest.mark.slow
@hypothesis.given(
    text=TEXTS,
    stages=st.lists(
        st.tuples(
            st.sampled_from(
                [*DEEPSEEK.stages, *GPT2.stages, r"[a-z]", r"\s", r"'s|\p{N}", r"\S+|x"]
            ),
            st.sampled_from([*BEHAVIOURS]),
        ),
        min_size=1,
        max_size=4,
    ),
)
@hypothesis.settings(max_examples=400)
@hypothesis.example("x12345字字y, 'sa b", [(stage, "isolated") for stage in DEEPSEEK.stages])
def test_stages_split_like_tokenizers(text: str, stages: list[tuple[str, str]]) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    steps = [
        tokenizers.pre_tokenizers.Split(tokenizers.Regex(stage), *BEHAVIOURS[behaviour])
        for stage, behaviour in stages
    ]
    oracle = tokenizers.pre_tokenizers.Sequence(steps)
    expected = [piece for piece, _ in oracle.pre_tokenize_str(text) if piece]
    assert find_staged_pattern(*zip(*stages, strict=True)).split(text) == expected


@pytest.mark.parametrize(
    ("spelling", "pattern"),
    [
        (TIKTOKEN_GPT2, GPT2),
        (r"'s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", GPT2),
        (CL100K_IN_TIKTOKEN, CL100K),
        *((name, GPT2) for name in ("gpt2", "r50k", "p50k", "r50k_base", "p50k_base")),
        ("cl100k_base", CL100K),
        ("o200k", O200K),
        *((pattern.name, pattern) for pattern in PATTERNS),
        *((pattern.stages[0], pattern) for pattern in NATIVE_PATTERNS),
    ],
)
def test_a_published_pattern_is_found_by_name_and_by_regex(spelling: str, pattern: Pattern) -> None:
    assert find_pattern(spelling) is pattern


def test_a_published_pattern_is_found_by_its_stages() -> None:
    assert find_staged_pattern(DEEPSEEK.stages) is DEEPSEEK
    assert find_staged_pattern((r"\d", r"\w+")) == Pattern("custom", (r"\d", r"\w+"))
    assert find_pattern(DEEPSEEK) is DEEPSEEK


def test_stage_two_merges_stay_within_lines_and_groups_of_digits() -> None:
    lines = ["def f(x):\n    ", " return x 12345 or\n\n", "the end.\r\n  ", "\n", " x"]
    assert superword_pattern(GPT2).split("".join(lines)) == lines
    pieces = ["in ", "123", "45", " and\n ", "1"]
    assert superword_pattern(LLAMA3).split("".join(pieces)) == pieces


# A pattern, and a word of its error message.
REFUSED = r"""
a(b[ 3 cl100 cl100k gpt-2 gpt2 a\1 back-reference (?R)a|b recursion a{e<=1}b brace
x(?<=a)b look-behind a(?=ab) look-ahead \bx boundary a) 1 x* characters [^\s\S] matches
(?!x)x matches ^|a characters (?:a*)*b nothing a** 2 a{9999} 1000 (?:a{999}){999} steps
.*a.{12} states (?>ab) atomic a{2,1}b brace (?:ab)++ possessive \p{Nope} nope (?(1)a) conditional
\ backslash [a--b] range [[:alpha:]] POSIX [b-a] range \x{110000} code (?i:é) 4
(?i:\p{Lu}) case (?x:a) unknown \K escape
""".split()
LONG = {
    "": "empty",
    "(" * 2000: "100",
    "(" * 2000 + "a" + ")" * 2000: "hundred",
    "a|" * 10_000 + "b": "steps",
    "a" * 1_000_000: "65536",
    "[" * 60_000: "hundred",
    "".join(map(chr, range(0x4E00, 0x5000))): "sets",
    r"\p{" + "L" * 99: "property",
}


@pytest.mark.parametrize(
    ("pattern", "noun"), [*zip(REFUSED[::2], REFUSED[1::2], strict=True), *LONG.items()]
)
def test_invalid_patterns_are_rejected(pattern: str, noun: str) -> None:
    with pytest.raises(TokenizerError, match=noun):
        find_pattern(pattern)
