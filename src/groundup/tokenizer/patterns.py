"""Split patterns: regular expressions that cut text into pre-tokens, which merges never cross.

Lists the published patterns with their alternative spellings. The native core compiles a pattern
to an automaton that runs in linear time, and rejects patterns for which it cannot.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from groundup.errors import TokenizerError, did_you_mean
from groundup.tokenizer.native import Splitter, as_array


@dataclass(frozen=True)
class Pattern:
    """One or more regular expressions, each applied to the pieces left by the previous one.

    `behaviours` states per stage how matches are split off: "isolated" (the default), "removed",
    "kept" (the text between matches is removed), "merged with previous", "merged with next" or
    "contiguous".
    """

    name: str
    stages: tuple[str, ...]
    behaviours: tuple[str, ...] = ()

    @property
    def splitter(self) -> Splitter:
        """The compiled pattern; raises TokenizerError if it cannot be compiled."""
        return _compile(self)

    def split(self, text: str) -> list[str]:
        """Split text into pre-tokens; unmatched text between matches is a pre-token too."""
        data = text.encode()
        bounds = as_array(self.splitter.split(data), np.uint64).reshape(-1, 2).tolist()
        return [data[begin:end].decode() for begin, end in bounds]


GPT2 = Pattern(
    "gpt2",
    (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",),
)


# Keeps whitespace at the end of the text in one piece; LLAMA3, the older form of this pattern,
# splits it after the last newline.
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
CUSTOM = "custom"
"""The name of all other patterns."""

# Alternative spellings of the same splits: GPT-2's in papers and in old and current tiktoken; the
# cl100k family's in tiktoken over time (in the current one, `\s++$` matches only at the end of the
# text).
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


# A line with its line breaks and the indentation of the next line, except for the last blank, which
# belongs to the word after it.
_LINE = r"[^\r\n]*[\r\n]+(?:[^\S\r\n]+(?!\S))?|[^\r\n]+"


def superword_pattern(pattern: Pattern) -> Pattern:
    """Return the pattern for SuperBPE's merges across words: it splits between lines, and between
    groups of digits if `pattern` limits their length."""
    first, *more = pattern.split("1" * 9)
    digits = [rf"\p{{N}}{{1,{len(first)}}}"] if more else []
    return find_staged_pattern((*digits, _LINE))


def find_pattern(text: str | Pattern) -> Pattern:
    """Return the published pattern with this name or regular expression, else a custom one."""
    if isinstance(text, Pattern):
        return text
    if text in _PATTERN_OF_NAME:
        return _PATTERN_OF_NAME[text]
    if len(text) < 40 and text.replace("-", "_").isidentifier():
        raise TokenizerError(f"unknown split pattern {text!r}: {did_you_mean(text, PATTERN_NAMES)}")
    return find_staged_pattern((text,))


def find_staged_pattern(stages: tuple[str, ...], behaviours: tuple[str, ...] = ()) -> Pattern:
    """Return the published pattern with exactly these stages, else a custom one that compiles."""
    if not set(behaviours) - {"isolated"}:
        behaviours = ()
        if stages in _PATTERN_OF_STAGES:
            return _PATTERN_OF_STAGES[stages]
    if not all(stages):
        raise TokenizerError("the split pattern is empty; give a name or a regular expression")
    pattern = Pattern(CUSTOM, stages, behaviours)
    _compile(pattern)
    return pattern


@lru_cache(maxsize=64)
def _compile(pattern: Pattern) -> Splitter:
    try:
        return Splitter(pattern.stages, pattern.behaviours, pattern.name)
    except ValueError as error:
        shown = ", ".join(
            stage if len(stage) <= 60 else stage[:57] + "..." for stage in pattern.stages
        )
        raise TokenizerError(
            f"the split pattern {shown} has {error}; fix it, or name one of "
            f"{', '.join(PATTERN_NAMES)}"
        ) from None
