"""A definition is consistent or names what is not; its content id hashes its content."""

import dataclasses
import re
from typing import Any

import oracles
import pytest

from groundup.errors import TokenizerError
from groundup.tokenizer.definition import (
    TokenizerDefinition,
    assign_special_tokens,
    check_special_token_texts,
)
from groundup.tokenizer.patterns import CL100K

BYTES = dict(enumerate(oracles.BYTES))
SMALL = TokenizerDefinition(
    vocab={**BYTES, 256: b"th", 257: b"the", 258: b"<|end|>"},
    merges=[(b"t", b"h"), (b"th", b"e")],
    special_tokens={"<|end|>": 258},
)


def change(**changes: Any) -> TokenizerDefinition:
    return dataclasses.replace(SMALL, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"special_tokens": {"": 258}}, "id 258 is empty"),
        ({"special_tokens": {"<|end|>": 258, "<|x|>": 258}}, "same id"),
        ({"special_tokens": {"<|end|>": 12}}, "has id 12"),
        ({"special_tokens": {"<|end|>": 700}}, "has id 700"),
        ({"vocab": {**SMALL.vocab, -1: b"ab"}}, "negative id -1"),
        ({"vocab": {**SMALL.vocab, 259: b"th"}}, "b'th' twice"),
        ({"vocab": {**SMALL.vocab, 261: b"ab"}}, "no token has id 259, though ids run to 261"),
        ({"vocab": {**SMALL.vocab, 259: b""}}, "id 259 is empty"),
        ({"vocab": {**SMALL.vocab, 0x41: b"not A"}}, "single byte 0x41"),
        ({"vocab": {}, "special_tokens": {}, "merges": []}, "single byte 0x00"),
        ({"merges": [(b"q", b"zz")]}, "merge .*b'zz'"),
        ({"merges": [(b"t", b"h"), (b"q", b"u")]}, "merge .*b'qu'"),
        ({"merges": [(b"t", b"h"), (b"t", b"h")]}, "occurs twice"),
    ],
)
def test_inconsistent_parts_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        change(**changes).validate()


def test_special_tokens_may_leave_or_fill_gaps_and_repeat_ordinary_tokens() -> None:
    change(
        vocab={**SMALL.vocab, 500: b"<|far|>"},
        special_tokens={**SMALL.special_tokens, "<|far|>": 500},
    ).validate()
    # As in p50k, where <|endoftext|> is among the ordinary ids.
    change(vocab={**SMALL.vocab, 259: b"ab"}).validate()
    repeated = change(
        vocab={**SMALL.vocab, 259: b"the"}, special_tokens={**SMALL.special_tokens, "the": 259}
    ).validate()
    assert repeated.ids_by_token()[b"the"] == 257


def test_the_content_id_depends_on_the_content_only() -> None:
    content_id = SMALL.content_id
    assert re.fullmatch("sha256:[0-9a-f]{64}", content_id)
    shuffled = change(vocab=dict(reversed(SMALL.vocab.items())), lineage={"corpus": "stories"})
    assert shuffled.content_id == content_id
    others = [
        change(pattern=CL100K),
        change(whole_words=True),
        change(merges=[(b"t", b"h")]),
        change(merges=SMALL.merges[::-1]),
        change(special_tokens={}),
        change(vocab={**SMALL.vocab, 256: b"the", 257: b"th"}),
    ]
    assert len({content_id, *(other.content_id for other in others)}) == 1 + len(others)


def test_special_tokens_get_the_id_of_their_entry_or_the_next_id() -> None:
    ids = assign_special_tokens(SMALL.vocab, ["<|new|>", "<|end|>", "<|b|>"])
    assert ids == {"<|new|>": 259, "<|end|>": 258, "<|b|>": 260}
    ids = assign_special_tokens(BYTES, ["<|x|>", "<|y|>"], {"<|y|>": 300, "<|z|>": 9})
    assert ids == {"<|x|>": 301, "<|y|>": 300}


def test_bad_special_token_lists_are_named() -> None:
    texts: Any
    for texts, noun in ((["<|a|>", ""], "empty"), (["b", "b"], "'b'"), ("<|a|>", "list")):
        with pytest.raises(TokenizerError, match=noun):
            check_special_token_texts(texts)
    with pytest.raises(TokenizerError, match="surrogate"):
        assign_special_tokens(BYTES, ["\ud800"])
