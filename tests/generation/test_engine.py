"""The loop of generation against the model's own logits, and what it leaves untouched."""

import itertools

import pytest
import torch

from groundup.errors import ConfigError
from groundup.generation import Greedy, Sampler, generate_ids
from groundup.model import TransformerLM

GREEDY = Sampler((Greedy(),))


@pytest.fixture(scope="module")
def model() -> TransformerLM:
    torch.manual_seed(0)
    return TransformerLM(
        vocab_size=50, context_length=8, d_model=16, num_layers=2, num_heads=2, rope_theta=100.0
    )


def test_greedy_ids_are_the_models_likeliest(model: TransformerLM) -> None:
    ids = [3, 1, 4]
    new = list(generate_ids(model, ids, 20, GREEDY))
    assert len(new) == 20
    for id in new:
        # Beyond the context the oldest ids fall out of sight.
        logits = model(torch.tensor([ids[-8:]]))[0, -1]
        assert id == int(logits.argmax())
        ids.append(id)


def test_a_long_prompt_is_seen_by_its_end(model: TransformerLM) -> None:
    long = list(range(30))
    assert list(generate_ids(model, long, 5, GREEDY)) == list(
        generate_ids(model, long[-8:], 5, GREEDY)
    )


def test_a_seed_decides_the_ids(model: TransformerLM) -> None:
    def draw(seed: int) -> list[int]:
        return list(generate_ids(model, [1], 30, generator=torch.Generator().manual_seed(seed)))

    assert draw(5) == draw(5) != draw(6)
    assert list(generate_ids(model, [1], 30)) == list(generate_ids(model, [1], 30))


def test_generation_ends_before_a_stop_id(model: TransformerLM) -> None:
    free = list(generate_ids(model, [3, 1, 4], 20, GREEDY))
    stop = free[7]
    assert list(generate_ids(model, [3, 1, 4], 20, GREEDY, stop_ids=[stop])) == list(
        itertools.takewhile(lambda id: id != stop, free)
    )


def test_ids_come_one_by_one(model: TransformerLM) -> None:
    endless = generate_ids(model, [1], 10**9)
    assert len(list(itertools.islice(endless, 3))) == 3


@pytest.mark.parametrize("training", [True, False])
def test_no_mode_leaks_to_the_caller(model: TransformerLM, training: bool) -> None:
    model.train(training)
    state = torch.get_rng_state()
    for _ in generate_ids(model, [1], 3):
        assert torch.is_grad_enabled()
        assert model.training == training
    assert model.training == training and model.blocks[0].training == training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_prompt_is_not_changed(model: TransformerLM) -> None:
    prompt = [1, 2]
    list(generate_ids(model, prompt, 4))
    assert prompt == [1, 2]


@pytest.mark.parametrize(
    ("prompt", "num_new_ids", "complaint"),
    [
        ([], 1, "no id to go on from"),
        ([1], -1, "number of new ids is -1"),
        ([1, 50], 1, "id 50 is outside the model's vocabulary of 50"),
        ([-1], 1, "id -1"),
    ],
)
def test_a_mistake_is_told_before_the_first_id(
    model: TransformerLM, prompt: list[int], num_new_ids: int, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        generate_ids(model, prompt, num_new_ids)


def test_no_new_ids_are_none(model: TransformerLM) -> None:
    assert list(generate_ids(model, [1], 0)) == []
