"""The tokenizer view: the route's answers against the tokenizer itself, and the page that shows."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from groundup.generation import LanguageModel
from groundup.serving.tokenizer_view import (
    MAX_PRE_TOKEN_BYTES,
    MAX_SYMBOLS,
    describe_tokenization,
)
from groundup.tokenizer import Tokenizer

TEXTS = [
    "",
    "the cat sat on the mat",
    "  two  spaces\n\nand a café — 雨 🙂",
    "the<|endoftext|>cat",
    "mat" * MAX_PRE_TOKEN_BYTES + " the cat " + "雨" * MAX_PRE_TOKEN_BYTES,
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
    assert all(bytes(token.bytes) == tokenizer.vocab[token.id] for token in tokens)
    assert b"".join(bytes(token.bytes) for token in tokens) == text.encode()
    assert answer.num_ids == len(tokens)
    assert (answer.num_bytes, answer.num_characters) == (len(text.encode()), len(text))


@pytest.mark.parametrize("text", TEXTS)
def test_pre_tokens_cover_the_text_in_order(language_model: LanguageModel, text: str) -> None:
    pre_tokens = describe(language_model.tokenizer, text).pre_tokens
    assert "".join(pre_token.text for pre_token in pre_tokens) == text
    place = 0
    for pre_token in pre_tokens:
        assert (pre_token.start, text[pre_token.start : pre_token.end]) == (place, pre_token.text)
        place = pre_token.end


def test_each_merge_joins_two_neighbours_and_the_last_leaves_the_tokens(
    language_model: LanguageModel,
) -> None:
    for pre_token in describe(language_model.tokenizer, TEXTS[2]).pre_tokens:
        symbols = [[byte] for token in pre_token.tokens for byte in token.bytes]
        for merge in pre_token.merges:
            places = [
                place
                for place in range(len(symbols) - 1)
                if symbols[place : place + 2] == [merge.left, merge.right]
                and [*symbols[:place], merge.left + merge.right, *symbols[place + 2 :]]
                == merge.symbols
            ]
            assert places
            assert language_model.tokenizer.definition.merges[merge.rank] == (
                bytes(merge.left),
                bytes(merge.right),
            )
            symbols = merge.symbols
        assert symbols == [token.bytes for token in pre_token.tokens]


def test_a_pre_token_too_long_to_follow_keeps_its_tokens(language_model: LanguageModel) -> None:
    first, *_, last = describe(language_model.tokenizer, TEXTS[-1]).pre_tokens
    assert first.is_too_long and last.is_too_long
    assert first.tokens and not first.merges
    longest = describe(language_model.tokenizer, "m" * MAX_PRE_TOKEN_BYTES)
    assert not longest.pre_tokens[0].is_too_long


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
        (b'{"text": "ab\\ud83d"}', "surrogate"),
        (b'{"text": 5}', "text"),
        (b"{}", "text is missing"),
        (b'{"text": "", "more": 1}', "more"),
        (b"[", "JSON"),
    ],
)
def test_what_cannot_be_tokenized_is_refused_in_words(
    running: Any, body: bytes, reason: str
) -> None:
    headers = {"Content-Type": "application/json"}
    answer = running.post("/api/tokenize", content=body, headers=headers)
    assert answer.status_code == 400
    assert reason in answer.json()["error"]["message"]


def test_a_story_is_shown_as_chips_with_ids_bytes_and_merges(
    browser: Any, running: Any, language_model: LanguageModel
) -> None:
    text = "Once upon a time the cat"
    browser.open(f"{running.url}/#tokenizer")
    box = browser.find("#tokenizer-text")
    box.clear()
    box.send_keys(text)
    expected = describe(language_model.tokenizer, text)
    tokens = [token for pre_token in expected.pre_tokens for token in pre_token.tokens]
    ids = [str(token.id) for token in tokens]
    browser.wait(lambda: _texts(browser, ".chip-id") == ids)
    assert len(browser.all(".pre-token")) == len(expected.pre_tokens) == 6

    browser.all('[name="chip-detail"]')[1].click()
    assert browser.find(".chip-bytes").is_displayed()
    assert _texts(browser, ".chip-bytes") == [bytes(token.bytes).hex(" ") for token in tokens]

    browser.all(".chip")[-1].click()
    last = expected.pre_tokens[-1]
    assert last.merges
    assert len(browser.all(".merge-step")) == 1 + len(last.merges)
    merged = [bytes(merge.left + merge.right).decode() for merge in last.merges]
    assert _texts(browser, ".merge-step mark") == [one.replace(" ", "␣") for one in merged]
    assert len(browser.all(".token-table tr[aria-current='true']")) == 1


def _texts(browser: Any, selector: str) -> list[str]:
    source = "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)"
    return list(browser.script(source, selector))


def test_chips_are_reached_by_arrow_keys(browser: Any, running: Any) -> None:
    browser.open(f"{running.url}/#tokenizer?text=the+cat+sat")
    browser.find(".chip")
    browser.script("document.getElementById('tokenizer-text').focus()")
    browser.press("TAB")
    browser.press("TAB")
    first = browser.script("return document.activeElement.ariaLabel")
    browser.press("ARROW_RIGHT")
    second = browser.script("return document.activeElement.ariaLabel")
    assert first != second
    assert browser.script("return document.activeElement.ariaSelected") == "true"
    assert len(browser.all('#chips [tabindex="0"]')) == 1
