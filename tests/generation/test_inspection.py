"""Inspection of a prompt, each part against the plain computation."""

import base64
from typing import Any

import numpy as np
import pytest
import torch

from groundup.generation import LanguageModel, Sampler
from groundup.generation.inspection import MAX_TOKENS, inspect_prompt
from groundup.tokenizer import Tokenizer

from .conftest import new_model


def make(**settings: Any) -> LanguageModel:
    tokenizer = Tokenizer({id: bytes([id]) for id in range(256)}, [])
    shape = {"vocab_size": 260, "context_length": 80}
    return LanguageModel(new_model(**(shape | settings)), tokenizer)


def ids_of(tokens: Any) -> Any:
    return [ids_of(one) if isinstance(one[0], list) else one[0] for one in tokens]


@pytest.mark.parametrize(
    "settings",
    [{}, {"norm": "post"}, {"document_separator": ord(";"), "value_embeddings": "projection"}],
)
def test_predictions_of_layers_and_nearest_tokens(settings: Any) -> None:
    language_model = make(**settings)
    model, prompt = language_model.model, "once;upon a time"
    found = inspect_prompt(language_model, prompt, Sampler())
    ids = torch.tensor(list(prompt.encode()))
    with torch.no_grad():
        logits = model(ids[None])[0, :, :256]
        embedded = model.logits(model.final_norm(model.embed(ids)))[:, :256]
        table = model.token_embedding.weight[:256]
    assert found["tokens"] == [[id, [id]] for id in ids.tolist()] and not found["is_cut"]
    last, predicted = logits.softmax(-1).topk(5), found["predicted"]
    assert ids_of(predicted["tokens"][-1]) == last.indices.tolist()
    np.testing.assert_allclose(predicted["values"][-1], last.values, atol=1e-4)
    assert ids_of(predicted["tokens"][0]) == embedded.topk(5).indices.tolist()
    assert len(predicted["tokens"]) == model.config.num_layers + 1
    cosines = torch.nn.functional.cosine_similarity(table[ids[3]][None], table)
    assert ids_of(found["neighbours"]["tokens"][3]) == cosines.topk(7).indices[1:].tolist()
    shape = found["num_layers"], found["num_heads"], len(ids), len(ids)
    weights = np.frombuffer(base64.b64decode(found["attention"]), np.uint8).reshape(shape) / 255
    expected = model.attention_weights(ids[None])[:, 0]
    np.testing.assert_allclose(weights, expected.numpy(), atol=1 / 500)
    if "document_separator" in settings:
        assert weights[..., 5:, :4].max() == 0


@pytest.mark.parametrize(
    "sampler",
    [
        Sampler(),
        Sampler(temperature=0),
        Sampler(temperature=2.0, top_k=5, min_p=0.1),
        Sampler(repetition_penalty=1.5, top_p=0.5),
    ],
)
def test_the_sampled_id_is_the_next_id_of_the_text(sampler: Sampler) -> None:
    language_model = make()
    for seed in range(4):
        found = inspect_prompt(language_model, "once upon", sampler, seed)
        options: Any = dict(sampler)
        written = language_model.generate("once upon", max_tokens=1, seed=seed, **options)
        sampling, stages = found["sampling"], found["sampling"]["stages"]
        assert written == bytes([sampling["sampled"]]).decode(errors="replace")
        last = list(stages.values())[-1]
        assert last[ids_of(sampling["candidates"]).index(sampling["sampled"])] > 0
        assert all(sum(values) <= 1.001 for values in stages.values())
        if sampler.top_k:
            assert sum(value > 0 for value in stages["top_k"]) == 5


def test_a_long_prompt_is_truncated() -> None:
    for length, expected in ((80, MAX_TOKENS), (20, 20)):
        found = inspect_prompt(make(context_length=length), "a" * 100, Sampler())
        assert len(found["tokens"]) == expected and found["is_cut"]
