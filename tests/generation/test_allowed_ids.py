"""Ids of the model that the tokenizer lacks are never sampled, however likely they are."""

import math
from typing import Any

import pytest
import torch

from groundup.generation import GenerationRequest, GenerationSettings, LanguageModel, Sampler
from groundup.model import TransformerLM
from groundup.tokenizer import Tokenizer

from .conftest import new_model, plain_ids

# 256 ends a text; ids from 257 on are padding of the model's vocabulary.
TOKENIZER = Tokenizer({id: bytes([id]) for id in range(256)}, [], ["<|endoftext|>"])
PROMPTS = ["Once", "upon", "O"]
RULES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "all": {"temperature": 1.5, "top_k": 40, "top_p": 0.8, "min_p": 0.01},
    "repetition penalty": {"repetition_penalty": 1.5},
}


@pytest.fixture
def padded(form: str, shout: Any) -> TransformerLM:
    """A model whose most likely ids are always those that the tokenizer lacks."""
    model = new_model(vocab_size=300)
    shout(model, [*range(257, 300)])
    return model


def without(model: TransformerLM, ids: list[int]) -> TransformerLM:
    """The oracle: the same model with very low logits for these ids."""
    quiet = TransformerLM.from_config(model.config)
    quiet.load_state_dict(model.state_dict())

    def logits(hidden: torch.Tensor) -> torch.Tensor:
        return TransformerLM.logits(quiet, hidden).index_fill(-1, torch.tensor(ids), -1e30)

    quiet.logits = logits  # type: ignore[method-assign]
    return quiet


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_texts_equal_those_of_a_model_without_the_other_ids(
    padded: TransformerLM, rules: dict[str, Any]
) -> None:
    language_model = LanguageModel(padded, TOKENIZER)
    # Without the limit, the model would sample nothing else.
    greedy = GenerationRequest((79,), 1, Sampler(temperature=0))
    assert plain_ids(padded, greedy)[0] not in TOKENIZER.vocab
    quiet = without(padded, list(range(257, 300)))
    settings = {**rules, "max_tokens": 10}
    requests = [
        language_model.request(prompt, GenerationSettings(seed=seed, **settings))
        for seed, prompt in enumerate(PROMPTS)
    ]
    ids = ([id for id in plain_ids(quiet, request) if id != 256] for request in requests)
    expected = list(map(TOKENIZER.decode, ids))
    assert language_model.generate_many(PROMPTS, **settings) == expected
    assert any(expected)


def test_log_probabilities_are_normalized_over_the_allowed_ids(padded: TransformerLM) -> None:
    engine = LanguageModel(padded, TOKENIZER).make_engine(2)
    # A prompt may contain any id of the model.
    for penalty in (1.3, 1.0):
        sampler = Sampler(temperature=2.0, repetition_penalty=penalty)
        engine.add(GenerationRequest((299, 258, 65), 6, sampler, num_alternatives=1000))
    while engine.num_running:
        for _, token in engine.step():
            assert {id for id, _ in token.alternatives} == set(TOKENIZER.vocab)
            total = math.fsum(math.exp(value) for _, value in token.alternatives)
            assert total == pytest.approx(1)
            assert token.log_probability == dict(token.alternatives)[token.id]
