"""Ids that a model has and its tokenizer lacks are never sampled, however likely they are."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from groundup.generation import GenerationRequest, GenerationSettings, LanguageModel, Sampler
from groundup.generation.decoder import AllowedIds
from groundup.model import TransformerLM
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.definition import TokenizerDefinition

NewModel = Callable[..., TransformerLM]

END = "<|endoftext|>"
BYTES = {id: bytes([id]) for id in range(256)}
# The end of a text at 256, another special token at 262, and nothing in between.
GAPS = tuple(range(257, 262))
WITHOUT_GAPS = Tokenizer(BYTES, [], [END])
WITH_GAPS = Tokenizer.from_definition(
    TokenizerDefinition({**BYTES, 256: END.encode(), 262: b"<|x|>"}, [], {END: 256, "<|x|>": 262})
)
TOKENIZERS = {"no gaps": WITHOUT_GAPS, "gaps": WITH_GAPS}
PROMPTS = ["Once", "upon", "O"]
RULES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "all": {"temperature": 1.5, "top_k": 40, "top_p": 0.8, "min_p": 0.01},
    "repetition penalty": {"repetition_penalty": 1.5},
}


@pytest.fixture
def padded(form: str, new_model: NewModel, shout: Any) -> TransformerLM:
    """Its likeliest ids are always those in the gaps, or beyond all that a tokenizer here has."""
    model = new_model(vocab_size=300)
    shout(model, [*GAPS, *range(263, 300)])
    return model


def without(model: TransformerLM, ids: list[int]) -> TransformerLM:
    """The oracle: the same model, where these ids come out far below all others."""
    quiet = TransformerLM.from_config(model.config)
    quiet.load_state_dict(model.state_dict())

    def logits(hidden: torch.Tensor) -> torch.Tensor:
        return TransformerLM.logits(quiet, hidden).index_fill(-1, torch.tensor(ids), -1e30)

    quiet.logits = logits  # type: ignore[method-assign]
    return quiet


def test_the_ids_are_those_that_can_be_decoded() -> None:
    assert AllowedIds.of(WITHOUT_GAPS) == AllowedIds(257)
    assert AllowedIds.of(WITH_GAPS) == AllowedIds(263, GAPS)
    assert AllowedIds(6, (1, 4)).missing(6) == [1, 4] and AllowedIds(8).missing(8) == []
    assert AllowedIds(6, (1, 4)).missing(8) == [1, 4, 6, 7]


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_texts_are_those_of_a_model_without_the_other_ids(
    padded: TransformerLM,
    tokenizer: Tokenizer,
    rules: dict[str, Any],
    plain_ids: Callable[[TransformerLM, GenerationRequest], list[int]],
) -> None:
    language_model = LanguageModel(padded, tokenizer)
    # The model alone would sample nothing else.
    greedy = GenerationRequest((79,), 1, Sampler(temperature=0))
    assert plain_ids(padded, greedy)[0] not in tokenizer.vocab
    quiet = without(padded, [id for id in range(300) if id not in tokenizer.vocab])
    settings = {**rules, "max_tokens": 10}
    requests = [
        language_model.request(prompt, GenerationSettings(seed=seed, **settings))
        for seed, prompt in enumerate(PROMPTS)
    ]
    ids = ([id for id in plain_ids(quiet, request) if id != 256] for request in requests)
    expected = list(map(tokenizer.decode, ids))
    assert language_model.generate_many(PROMPTS, **settings) == expected
    assert any(expected)


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
def test_likelihoods_are_normalized_over_what_can_be_written(
    padded: TransformerLM, tokenizer: Tokenizer
) -> None:
    engine = LanguageModel(padded, tokenizer).make_engine(2)
    engine.add(GenerationRequest((79, 110), 6, Sampler(temperature=2.0), num_alternatives=1000))
    while engine.num_running:
        for _, token in engine.step():
            assert {id for id, _ in token.alternatives} == set(tokenizer.vocab)
            total = math.fsum(math.exp(value) for _, value in token.alternatives)
            assert total == pytest.approx(1)
            assert token.log_probability == dict(token.alternatives)[token.id]


def test_a_prompt_may_hold_any_id_of_the_model(padded: TransformerLM) -> None:
    engine = LanguageModel(padded, WITHOUT_GAPS).make_engine(2)
    for penalty in (1.3, 1.0):
        engine.add(GenerationRequest((299, 258, 65), 8, Sampler(repetition_penalty=penalty)))
    while engine.num_running:
        assert all(0 <= token.id < 257 for _, token in engine.step())
