"""The rules of choice: what each leaves, how equals are settled, what values are refused."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from groundup.errors import CheckpointError, ConfigError
from groundup.generation import Greedy, Sampler, Temperature, TopK, TopP


def kept(logits: Tensor) -> list[int]:
    return torch.nonzero(logits > -torch.inf).flatten().tolist()


def log_of(*probabilities: float) -> Tensor:
    return torch.tensor(probabilities).log()


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_greedy_keeps_the_likeliest_and_of_equals_the_lowest() -> None:
    assert kept(Greedy().apply(torch.tensor([1.0, 3.0, 2.0]))) == [1]
    assert kept(Greedy().apply(torch.tensor([1.0, 3.0, 3.0, 3.0]))) == [1]
    assert kept(Temperature(0.0).apply(torch.tensor([0.0, 7.0, 7.0]))) == [1]


def test_top_k_keeps_k_and_settles_ties_by_lower_id() -> None:
    logits = torch.tensor([0.0, 2.0, 1.0, 2.0, 1.0])
    assert kept(TopK(1).apply(logits)) == [1]
    assert kept(TopK(3).apply(logits)) == [1, 2, 3]
    assert kept(TopK(5).apply(logits)) == kept(TopK(50).apply(logits)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("p", "ids"),
    [
        (0.1, [0]),
        (0.5, [0]),
        (0.5001, [0, 1]),
        (0.75, [0, 1]),
        (0.76, [0, 1, 2]),
        (1.0, [*range(4)]),
    ],
)
def test_top_p_keeps_the_smallest_set_that_reaches_p(p: float, ids: list[int]) -> None:
    assert kept(TopP(p).apply(log_of(0.5, 0.25, 0.125, 0.125))) == ids


def test_top_p_settles_ties_by_lower_id() -> None:
    assert kept(TopP(0.5).apply(torch.zeros(8))) == [0, 1, 2, 3]
    assert kept(TopP(0.5).apply(log_of(0.125, 0.25, 0.125, 0.25, 0.25))) == [1, 3]


def test_what_remains_keeps_its_logit() -> None:
    logits = torch.randn(50, generator=generator())
    for rule in (TopK(7), TopP(0.6)):
        left = rule.apply(logits)
        assert torch.equal(left[kept(left)], logits[kept(left)])


def test_rules_work_on_each_row_by_itself() -> None:
    rows = torch.randn(3, 4, 20, generator=generator())
    for rule in (Greedy(), Temperature(0.7), Temperature(0.0), TopK(4), TopP(0.5)):
        together = rule.apply(rows)
        apart = torch.stack([rule.apply(row) for row in rows.reshape(-1, 20)]).reshape(3, 4, 20)
        assert torch.equal(together, apart)


@given(
    logits=st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=30),
    p=st.floats(0.01, 0.99),
    k=st.integers(1, 40),
)
def test_a_set_is_never_empty_and_never_leaves_a_likelier_id_out(
    logits: list[float], p: float, k: int
) -> None:
    values = torch.tensor(logits)
    for rule in (TopP(p), TopK(k)):
        inside = kept(rule.apply(values))
        assert inside
        outside = sorted(set(range(len(logits))) - set(inside))
        if outside:
            assert min(values[inside]) >= max(values[outside])


def test_a_tiny_temperature_does_not_overflow() -> None:
    logits = torch.tensor([1000.0, 999.0, -1000.0])
    assert Sampler.of(temperature=1e-30).choose(logits, generator()) == 0


def test_draws_follow_the_probabilities() -> None:
    logits = log_of(0.5, 0.25, 0.125, 0.125).expand(20_000, 4)
    drawn = Sampler().choose(logits, generator(1))
    shares = torch.bincount(drawn, minlength=4) / len(drawn)
    assert torch.allclose(shares, torch.tensor([0.5, 0.25, 0.125, 0.125]), atol=0.02)


def test_temperature_evens_out_or_sharpens() -> None:
    logits = log_of(0.8, 0.2)
    assert torch.softmax(Temperature(0.5).apply(logits), 0)[0] == pytest.approx(16 / 17)
    assert torch.softmax(Temperature(2.0).apply(logits), 0)[0] == pytest.approx(2 / 3)


def test_rules_apply_in_order() -> None:
    logits = log_of(0.4, 0.3, 0.2, 0.1)
    draws = {
        int(Sampler((TopK(2), TopP(0.5))).choose(logits, generator(seed))) for seed in range(50)
    }
    assert draws == {0}
    draws = {
        int(Sampler((TopP(0.5), TopK(2))).choose(logits, generator(seed))) for seed in range(50)
    }
    assert draws == {0, 1}


def test_the_global_random_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    Sampler.of(0.9, top_k=5, top_p=0.9).choose(torch.randn(9, generator=generator()), generator())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("values", [[math.nan, 1.0], [math.inf, 1.0], [-math.inf, -math.inf]])
def test_scores_that_are_not_finite_are_an_error(values: list[float]) -> None:
    with pytest.raises(CheckpointError, match="not finite"):
        Sampler().choose(torch.tensor(values), generator())


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        (Temperature, -0.1),
        (Temperature, math.nan),
        (Temperature, math.inf),
        (TopK, 0),
        (TopK, -1),
        (TopK, 2.5),
        (TopP, 0.0),
        (TopP, 1.5),
        (TopP, -0.5),
        (TopP, math.nan),
    ],
)
def test_a_value_out_of_range_is_refused(rule: type[Any], value: float) -> None:
    with pytest.raises(ConfigError, match=str(value)):
        rule(value)
