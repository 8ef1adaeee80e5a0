"""The pages' routes, compared with the tokenizer and the model."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from groundup.generation import LanguageModel, Sampler
from groundup.generation.inspection import inspect_prompt
from groundup.serving.api_errors import ApiError
from groundup.serving.views import (
    MAX_SYMBOLS,
    InsideRequest,
    TokenizeRequest,
    describe_inside,
    describe_tokenization,
)


def tokenize(language_model: LanguageModel, text: str) -> Any:
    answer = describe_tokenization(language_model, TokenizeRequest(text=text))
    return json.loads(answer, object_hook=lambda fields: SimpleNamespace(**fields))


TEXTS = ["", "the cat sat on the mat", "  two  spaces\n\nand a café — 雨 🙂"]
TEXTS += ["the<|endoftext|>cat", "mat" * 200 + " the cat " + "雨" * 128]


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_equal_those_of_the_tokenizer(language_model: LanguageModel, text: str) -> None:
    answer = tokenize(language_model, text)
    tokens = [token for pre_token in answer.pre_tokens for token in pre_token.tokens]
    assert [token.id for token in tokens] == language_model.tokenizer.encode(text)
    assert b"".join(bytes(token.bytes) for token in tokens) == text.encode()
    assert answer.num_tokens == len(tokens)
    assert "".join(one.text for one in answer.pre_tokens) == text
    assert all(text[one.start : one.end] == one.text for one in answer.pre_tokens)
    assert (answer.num_bytes, answer.num_characters) == (len(text.encode()), len(text))


def test_the_number_of_merge_steps_is_limited(language_model: LanguageModel, running: Any) -> None:
    text = ("thecatsatonthemat" * 7 + " ") * 30
    shown = tokenize(language_model, text).pre_tokens
    assert sum(len(step.symbols) for one in shown for step in one.merges) <= MAX_SYMBOLS
    assert shown[0].merges and not shown[0].is_too_long
    assert shown[-2].is_too_long and shown[-2].tokens
    assert "".join(one.text for one in shown) == text
    answer = running.post("/api/tokenize", json={"text": "a" * 20_001})
    assert answer.status_code == 400 and "20000 characters" in answer.text


def test_inspection_equals_the_model(language_model: LanguageModel) -> None:
    def inside(**fields: Any) -> Any:
        return json.loads(describe_inside(language_model, InsideRequest(**fields)))

    prompt = "the cat sat on 雨"
    expected = inspect_prompt(language_model, prompt, Sampler())
    assert inside(prompt=prompt) == json.loads(json.dumps(expected))
    sampler = Sampler(temperature=1.3, top_k=40, repetition_penalty=1.2)
    expected = inspect_prompt(language_model, prompt, sampler, seed=3)
    options = sampler.model_dump(exclude_defaults=True)
    assert inside(prompt=prompt, seed=3, **options) == json.loads(json.dumps(expected))
    with pytest.raises(ApiError, match="temperature"):
        inside(prompt="a", temperature=-1.0)
