"""A prompt's way through the model, each part against the plain computation."""

from typing import Any

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


@pytest.mark.parametrize(
    "settings",
    [{}, {"norm": "post"}, {"document_separator": ord(";"), "value_embeddings": "projection"}],
)
def test_layers_and_neighbours(settings: Any) -> None:
    language_model = make(**settings)
    model, prompt = language_model.model, "once;upon a time"
    found = inspect_prompt(language_model, prompt, Sampler())
    ids = torch.tensor(list(prompt.encode()))
    with torch.no_grad():
        logits = model(ids[None])[0, :, :256]
        embedded = model.logits(model.final_norm(model.embed(ids)))[:, :256]
        table = model.token_embedding.weight[:256]
    last = logits.softmax(-1).topk(5)
    assert torch.equal(found.predicted.ids[-1], last.indices)
    torch.testing.assert_close(found.predicted.values[-1], last.values)
    assert torch.equal(found.predicted.ids[0], embedded.topk(5).indices)
    assert len(found.predicted.ids) == model.config.num_layers + 1
    cosines = torch.nn.functional.cosine_similarity(table[ids[3]][None], table)
    assert found.neighbours.ids[3].tolist() == cosines.topk(7).indices[1:].tolist()
    torch.testing.assert_close(found.attention.sum(-1), torch.ones(found.attention.shape[:-1]))
    if "document_separator" in settings:
        assert found.attention[..., 5:, :4].max() == 0


@pytest.mark.parametrize(
    "sampler",
    [
        Sampler(),
        Sampler(temperature=0),
        Sampler(temperature=2.0, top_k=5, min_p=0.1),
        Sampler(repetition_penalty=1.5, top_p=0.5),
    ],
)
def test_the_sampled_id_is_the_next_one_of_the_text(sampler: Sampler) -> None:
    language_model = make()
    for seed in range(4):
        found = inspect_prompt(language_model, "once upon", sampler, seed)
        options: Any = dict(sampler)
        written = language_model.generate("once upon", max_tokens=1, seed=seed, **options)
        sampling = found.sampling
        assert written == bytes([sampling.sampled]).decode(errors="replace")
        last = list(sampling.stages.values())[-1]
        assert last[sampling.candidates.index(sampling.sampled)] > 0
        assert all(sum(values) <= 1.001 for values in sampling.stages.values())
        if sampler.top_k:
            assert sum(value > 0 for value in sampling.stages["top_k"]) == 5


def test_a_long_prompt_is_cut() -> None:
    assert len(inspect_prompt(make(), "a" * 100, Sampler()).ids) == MAX_TOKENS
    assert len(inspect_prompt(make(context_length=20), "a" * 100, Sampler()).ids) == 20
