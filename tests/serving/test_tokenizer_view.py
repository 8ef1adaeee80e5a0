"""The tokenizer view: the route's answers against the tokenizer itself."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from groundup.generation import LanguageModel
from groundup.serving.tokenizer_view import MAX_SYMBOLS, describe_tokenization
from groundup.tokenizer import Tokenizer

TEXTS = [
    "",
    "the cat sat on the mat",
    "  two  spaces\n\nand a café — 雨 🙂",
    "the<|endoftext|>cat",
    "mat" * 200 + " the cat " + "雨" * 128,
]


def describe(tokenizer: Tokenizer, text: str) -> Any:
    answer = describe_tokenization(tokenizer, text)
    return json.loads(answer, object_hook=lambda fields: SimpleNamespace(**fields))


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_are_those_of_the_tokenizer(language_model: LanguageModel, text: str) -> None:
    tokenizer = language_model.tokenizer
    answer = describe(tokenizer, text)
    tokens = [token for pre_token in answer.pre_tokens for token in pre_token.tokens]
    assert [token.id for token in tokens] == tokenizer.encode(text)
    assert b"".join(bytes(token.bytes) for token in tokens) == text.encode()
    assert answer.num_tokens == len(tokens)
    assert "".join(one.text for one in answer.pre_tokens) == text
    assert all(text[one.start : one.end] == one.text for one in answer.pre_tokens)
    assert (answer.num_bytes, answer.num_characters) == (len(text.encode()), len(text))


def test_many_long_pre_tokens_show_no_more_steps_than_fit(language_model: LanguageModel) -> None:
    text = ("thecatsatonthemat" * 7 + " ") * 30
    shown = describe(language_model.tokenizer, text).pre_tokens
    assert sum(len(step.symbols) for one in shown for step in one.merges) <= MAX_SYMBOLS
    assert shown[0].merges and not shown[0].is_too_long
    assert shown[-2].is_too_long and shown[-2].tokens
    assert "".join(one.text for one in shown) == text


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"text": "%s"}' % (b"a" * 20_001), "20,001 characters"),
        (b'{"text": "ab\\ud83d"}', "JSON"),
        (b'{"text": 5}', "text"),
        (b"{}", "text"),
        (b'{"text": "", "more": 1}', "more"),
    ],
)
def test_what_cannot_be_tokenized_is_refused_in_words(
    running: Any, body: bytes, reason: str
) -> None:
    headers = {"Content-Type": "application/json"}
    answer = running.post("/api/tokenize", content=body, headers=headers)
    assert answer.status_code == 400
    assert reason in answer.json()["error"]["message"]
