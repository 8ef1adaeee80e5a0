"""Oracles, texts and vocabularies shared by the tokenizer tests."""

import random
from collections.abc import Mapping
from functools import cache
from itertools import chain, pairwise
from typing import Any

import pytest
import regex

from groundup.tokenizer import Tokenizer
from groundup.tokenizer.definition import TokenizerDefinition, count_merges
from groundup.tokenizer.patterns import (
    CL100K,
    DEEPSEEK,
    GPT2,
    LLAMA3,
    O200K,
    QWEN2,
    Pattern,
    find_pattern,
    superword_pattern,
)
from groundup.tokenizer.training import TrainingSummary, WordCounting

NATIVE_PATTERNS = (GPT2, CL100K, LLAMA3, QWEN2, O200K)
PATTERNS = (*NATIVE_PATTERNS, DEEPSEEK)
BYTES = [bytes([byte]) for byte in range(256)]
END = "<|end|>"
# tiktoken's spelling, in which `$` only matches at the end of the text.
CL100K_IN_TIKTOKEN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_CASED, _LAST = O200K.stages[0].split(r"\p{N}{1,3}")
# Patterns of published tokenizers, including some whose files are unavailable here. Llama 4 uses
# o200k's, GLM Llama 3's and Qwen 3 Qwen 2's.
PUBLISHED = {pattern.name: pattern.stages for pattern in PATTERNS} | {
    "cl100k in tiktoken": (CL100K_IN_TIKTOKEN.replace("$", r"\Z"),),
    "gpt2 in papers": (r"'s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+",),
    "tekken": (_CASED.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "") + r"\p{N}" + _LAST,),
    "kimi k2": (
        r"[\p{Han}]+|"
        + (_CASED + r"\p{N}{1,3}" + _LAST)
        .replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]")
        .replace("/", ""),
    ),
    "minimax m2": (
        r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+(?:'[sS]|'[lL][lL])?"
        r"|[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*(?:'[sS]|'[lL][lL])?"
        r"|\p{N}{1,3}" + _LAST,
    ),
    "starcoder": (r"\p{N}", *GPT2.stages),
    "gemma's digits": (r"\p{N}", r" ?[^\s\p{N}]+|\s"),
    "nanochat": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}"
        r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    ),
    "qwen 3.5": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
        r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    "lazy and bounded": (r"[a-z]+?s|\p{N}{2,3}?(?=1)|.{2,3}?x|(?s:a.)|^b+|\w{2}+\Z",),
}
# Prefixes of each other, overlapping ends, regular expressions, whitespace, single characters.
SPECIAL = [
    *(END, END * 2),
    *"<|en < |> ab aba abab bab é a.b .* [a-b]+ (a|b) \\d $ ^ 's 😀 \0".split(),
    *("a b", " ", "  ", "\n", " \n", "b\na"),
]
SNIPPETS = [*"aabbABé字ไ́1 \n\r\t\u3000\xa0'.!/😀<|>", "  ", "\n\n", "'s", "'Ll", "the", " the"]
SNIPPETS += ["aab", "字AB", "AB字", "it's", "don't", "\u2028", *SPECIAL]


def split_by_regex(stages: tuple[str, ...], text: str) -> list[str]:
    """Split with the `regex` package, stage by stage."""
    pieces = [text] if text else []
    for stage in stages:
        # Only version 1 of its syntax has &&.
        expression = regex.compile(stage, regex.V1 if "&&" in stage else 0)
        parts: list[str] = []
        for piece in pieces:
            spans = chain.from_iterable(match.span() for match in expression.finditer(piece))
            cuts = pairwise(sorted({0, len(piece), *spans}))
            parts += [piece[begin:end] for begin, end in cuts]
        pieces = parts
    return pieces


def tiktoken_of(
    ranks: Mapping[bytes, int],
    special_tokens: Mapping[str, int] | None = None,
    expression: str = GPT2.stages[0],
) -> Any:
    """Return tiktoken's encoder with these tokens."""
    tiktoken = pytest.importorskip("tiktoken")
    return tiktoken.Encoding(
        "oracle",
        pat_str=expression,
        mergeable_ranks=dict(ranks),
        special_tokens=dict(special_tokens or {}),
    )


def learn(
    blocks: list[bytes], vocab_size: int, special_tokens: list[str], **options: Any
) -> tuple[Tokenizer, TrainingSummary]:
    """Train on blocks of text that end at document boundaries."""
    progress, superbpe_from = options.pop("progress", None), options.pop("superbpe_from", None)
    options = {"pattern": GPT2, "num_threads": None, **options}
    within = None if superbpe_from is None else (options["pattern"], superbpe_from)
    if within:
        options["pattern"] = superword_pattern(within[0])
    counting = WordCounting(special_tokens=special_tokens, **options)
    for block in blocks:
        counting.add(block, progress)
    num_merges = count_merges(vocab_size, len(special_tokens))
    learned, summary = counting.learn(num_merges, *(within or ()))
    return Tokenizer.from_definition(learned), summary


@cache
def without_splitting() -> Tokenizer:
    """A vocabulary in which most adjacent symbols merge, so ids reveal where text is split."""
    text = "".join(random.Random(0).choices(SNIPPETS, k=20_000))
    return learn([text.encode()], 3000, [], pattern=find_pattern(r"(?s).+"))[0]


def with_special(
    vocab: Mapping[int, bytes],
    merges: list[tuple[bytes, bytes]],
    special_tokens: list[str],
    pattern: Pattern = GPT2,
    whole_words: bool = False,
) -> Tokenizer:
    """Add special tokens, some with the bytes of ordinary ones, at ids that leave gaps."""
    ids = {text: len(vocab) + 3 * number for number, text in enumerate(special_tokens)}
    everything = {**vocab, **{id: text.encode() for text, id in ids.items()}}
    definition = TokenizerDefinition(everything, merges, ids, pattern, whole_words=whole_words)
    return Tokenizer.from_definition(definition)
