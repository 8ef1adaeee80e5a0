"""The route behind the page of a model's inside: the answer against the model itself."""

import base64
import json
from typing import Any

import numpy as np
import pytest
import torch

from groundup.generation import LanguageModel
from groundup.serving.api_errors import ApiError
from groundup.serving.inspection_view import InsideRequest, describe_inside


def describe(language_model: LanguageModel, **fields: Any) -> Any:
    return json.loads(describe_inside(language_model, InsideRequest(**fields)))


def test_what_is_shown_is_the_models(language_model: LanguageModel) -> None:
    prompt = "the cat sat on 雨"
    answer = describe(language_model, prompt=prompt)
    ids = language_model.encode_prompt(prompt)
    vocab = language_model.tokenizer.vocab
    assert answer["tokens"] == [[id, list(vocab[id])] for id in ids]
    shape = answer["num_layers"], answer["num_heads"], len(ids), len(ids)
    weights = np.frombuffer(base64.b64decode(answer["attention"]), np.uint8).reshape(shape) / 255
    expected = language_model.model.attention_weights(torch.tensor([ids]))[:, 0]
    np.testing.assert_allclose(weights, expected.numpy(), atol=1 / 500)
    assert len(answer["predicted"]["tokens"]) == shape[0] + 1
    assert all(
        id != near
        for [id, _], row in zip(answer["tokens"], answer["neighbours"]["tokens"], strict=True)
        for near, _ in row
    )


def test_the_sampled_token_is_what_generate_writes(language_model: LanguageModel) -> None:
    for seed in range(5):
        options: Any = {"temperature": 1.3, "top_k": 40, "repetition_penalty": 1.2}
        sampling = describe(language_model, prompt="the cat", seed=seed, **options)["sampling"]
        written = language_model.generate("the cat", max_tokens=1, seed=seed, **options)
        token = dict(map(tuple, [[id, bytes(b)] for id, b in sampling["candidates"]]))[
            sampling["sampled"]
        ]
        assert written in ("", token.decode(errors="replace"))
        assert list(sampling["stages"]) == ["model", "repetition_penalty", "temperature", "top_k"]


def test_a_prompt_that_cannot_be_shown(language_model: LanguageModel) -> None:
    assert describe(language_model, prompt="the cat " * 200)["is_cut"]
    with pytest.raises(ApiError, match="temperature"):
        describe(language_model, prompt="a", temperature=-1.0)
