"""The regular expressions that cut text into pre-tokens, the units nothing merges across.

The published patterns stand here as text with all the spellings they go by. Scanning them fast is
the native core's work; `Pattern.split` is the plain way through the `regex` package, for any
pattern.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any

from groundup.errors import TokenizerError, did_you_mean

_NATIVE_NAMES = frozenset({"gpt2", "cl100k", "o200k", "llama3", "qwen2"})


@dataclass(frozen=True)
class Pattern:
    """One regular expression or several, each cutting the pieces the one before it left."""

    name: str
    stages: tuple[str, ...]

    @property
    def native(self) -> bool:
        """Whether the native core has a scanner for it."""
        return self.name in _NATIVE_NAMES

    def split(self, text: str) -> list[str]:
        """Cut text into pre-tokens; what no match covers is kept as a pre-token of its own."""
        pieces = [text] if text else []
        for stage in self.stages:
            expression = _compile(stage)
            pieces = [part for piece in pieces for part in _split_once(expression, piece)]
        return pieces


GPT2 = Pattern(
    "gpt2",
    (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",),
)


# White space that ends the text stays in one piece here, newlines or not; LLAMA3, the older form of
# the same pattern, cuts it after its last newline.
CL100K = Pattern(
    "cl100k",
    (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++\Z|\s*[\r\n]|\s+(?!\S)|\s",
    ),
)
LLAMA3 = Pattern(
    "llama3",
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
)
QWEN2 = Pattern(
    "qwen2",
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
)
O200K = Pattern(
    "o200k",
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
)
DEEPSEEK = Pattern(
    "deepseek",
    (
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
        "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
        "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
    ),
)

_PUBLISHED = (GPT2, CL100K, LLAMA3, QWEN2, O200K, DEEPSEEK)
_PATTERN_OF_NAME = {pattern.name: pattern for pattern in _PUBLISHED} | {
    **dict.fromkeys(("r50k", "r50k_base", "p50k", "p50k_base"), GPT2),
    "cl100k_base": CL100K,
    "o200k_base": O200K,
    "qwen": QWEN2,
}
PATTERN_NAMES = tuple(_PATTERN_OF_NAME)

# Other spellings in use for the same cuts: of GPT-2's in tiktoken (early, now) and in papers; of
# the cl100k family in tiktoken over time (the `\s++$` of its present form means the end of the text
# only).
_PATTERN_OF_STAGES = {pattern.stages: pattern for pattern in _PUBLISHED} | {
    (r"'s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",): GPT2,
    (r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",): GPT2,
    (r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",): GPT2,
    (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"
        r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    ): CL100K,
    (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    ): LLAMA3,
}


def find_pattern(text: str | Pattern) -> Pattern:
    """The pattern of that name or regular expression, in any spelling, else a custom one."""
    if isinstance(text, Pattern):
        return text
    if text in _PATTERN_OF_NAME:
        return _PATTERN_OF_NAME[text]
    if text.replace("-", "_").isidentifier():
        raise TokenizerError(f"unknown split pattern {text!r}: {did_you_mean(text, PATTERN_NAMES)}")
    return find_staged_pattern((text,))


def find_staged_pattern(stages: tuple[str, ...]) -> Pattern:
    """The published pattern with exactly these stages, else a custom one, each stage checked."""
    if stages in _PATTERN_OF_STAGES:
        return _PATTERN_OF_STAGES[stages]
    if not all(stages):
        raise TokenizerError("the split pattern is empty; give a name or a regular expression")
    for stage in stages:
        _compile(stage)
    return Pattern("custom", stages)


@lru_cache(maxsize=64)
def _compile(expression: str) -> Any:
    import regex

    try:
        return regex.compile(expression)
    except regex.error as error:
        raise TokenizerError(
            f"the split pattern {expression!r} is not a valid regular expression: {error.msg} at "
            f"position {error.pos}; correct it, or name one of {', '.join(PATTERN_NAMES)}"
        ) from None


def _split_once(expression: Any, text: str) -> list[str]:
    spans = chain.from_iterable(match.span() for match in expression.finditer(text))
    return [text[begin:end] for begin, end in pairwise(sorted({0, len(text), *spans}))]
