"""A tokenizer as GGUF files hold it, and whether llama.cpp will cut text as we do."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import NamedTuple

from groundup.errors import TokenizerError
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.definition import TokenizerDefinition
from groundup.tokenizer.formats.spelling import spell_merges, spell_vocab

# Token types of the format.
NORMAL, CONTROL, UNUSED = 1, 3, 5


# What llama.cpp calls our split patterns. cl100k has none: its relatives there cut white space at
# the end of a text otherwise. Nor has o200k: llama.cpp's gpt-4o knows the case of ASCII letters
# alone, and no marks within words.
_PRE_TOKENIZERS = {
    "gpt2": "gpt-2",
    "llama3": "llama-bpe",
    "qwen2": "qwen2",
    "deepseek": "deepseek-v3",
}
# Where a pre-token that is a vocabulary entry is that token there, whatever the merges say.
_WHOLE_WORDS = ("llama3",)


class Vocabulary(NamedTuple):
    """The lists that a GGUF file has of a tokenizer."""

    pre_tokenizer: str
    tokens: list[str]
    token_types: list[int]
    merges: list[str]


def express_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> Vocabulary:
    """The tokenizer, filled up to the model's vocabulary; what would give other ids is refused."""
    definition = tokenizer.definition
    pre_tokenizer = _find_pre_tokenizer(definition)
    if not definition.merges:
        raise TokenizerError("llama.cpp refuses a tokenizer without merges, such as this one")
    spelled = spell_vocab(definition, "GGUF")
    merges = spell_merges(definition, spelled)
    tokens = [f"[unused {id}]" for id in range(vocab_size)]
    types = [UNUSED] * vocab_size
    for text, id in spelled.items():
        tokens[id], types[id] = text, NORMAL
    for id in definition.special_tokens.values():
        types[id] = CONTROL
    return Vocabulary(pre_tokenizer, tokens, types, merges)


def _find_pre_tokenizer(definition: TokenizerDefinition) -> str:
    pattern = definition.pattern
    found = _PRE_TOKENIZERS.get(pattern.name)
    if found is None:
        raise TokenizerError(
            f"llama.cpp has no pre-tokenizer for the split pattern {pattern.name}, only for "
            f"{', '.join(_PRE_TOKENIZERS)}: export to huggingface instead"
        )
    if definition.whole_words != (pattern.name in _WHOLE_WORDS):
        _check_merges_reach_whole_words(definition)
    return found


def _check_merges_reach_whole_words(definition: TokenizerDefinition) -> None:
    """Taking whole words changes no id where the merges lead to each of them anyway."""
    words = []
    for token in definition.ordinary_tokens().values():
        # No text holds part of a character by itself, so no pre-token is it.
        with contextlib.suppress(UnicodeDecodeError):
            words.append(token.decode())
    by_merges, whole = (
        Tokenizer.from_definition(dataclasses.replace(definition, whole_words=whole_words))
        for whole_words in (False, True)
    )
    for word in words:
        if by_merges.encode(word) != whole.encode(word):
            raise TokenizerError(
                f"llama.cpp would give other ids for {word!r:.60}, by what it takes for whole "
                f"words under the pattern {definition.pattern.name}: export to huggingface instead"
            )
