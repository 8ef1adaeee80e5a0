"""The rules of choice: what each leaves, how equals are settled, what values are refused."""

import math
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from groundup.errors import CheckpointError, ConfigError
from groundup.generation import (
    Greedy,
    MinP,
    RepetitionPenalty,
    Sampler,
    Temperature,
    TopK,
    TopP,
)
from groundup.generation.sampling import NO_ID, Rule
from groundup.generation.uniforms import Uniforms, uniforms


def kept(logits: Tensor) -> list[int]:
    return torch.nonzero(logits > -torch.inf).flatten().tolist()


def log_of(*probabilities: float) -> Tensor:
    return torch.tensor(probabilities).log()


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=generator(seed), dtype=torch.float64)


def by_sorting(logits: Tensor, k: int | None = None, p: float | None = None) -> list[int]:
    """The reference of top-k and top-p: a stable sort of one row, in float64."""
    order = logits.argsort(descending=True, stable=True)
    if k is not None:
        return sorted(order[:k].tolist())
    weights = torch.exp(logits - logits.max()).double()[order]
    reached_before = torch.cat([torch.zeros(1, dtype=torch.float64), weights.cumsum(0)[:-1]])
    return sorted(order[reached_before < p * weights.sum()].tolist())


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
    for rule in (Greedy(), Temperature(0.7), Temperature(0.0), TopK(4), TopP(0.5), MinP(0.2)):
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


@st.composite
def rows_of_logits(draw: st.DrawFn) -> Tensor:
    """Rows with many equals, long tails, outliers and ids ruled out before."""
    seed, size = draw(st.integers(0, 2**32)), draw(st.integers(1, 400))
    scale = draw(st.sampled_from([0.0, 1e-7, 0.3, 3.0, 30.0, 1000.0]))
    rows = torch.randn(draw(st.integers(1, 4)), size, generator=generator(seed)) * scale
    if draw(st.booleans()):
        rows = (rows / max(scale, 1.0) * 3).round()
    if draw(st.booleans()):
        ruled_out = torch.rand(rows.shape, generator=generator(seed)) < 0.4
        ruled_out[:, draw(st.integers(0, size - 1))] = False
        rows = rows.masked_fill(ruled_out, -torch.inf)
    return rows


@given(rows=rows_of_logits(), p=st.floats(0.001, 0.999), k=st.integers(1, 500))
def test_fast_selection_is_that_of_a_full_sort(rows: Tensor, p: float, k: int) -> None:
    for row, by_p, by_k in zip(rows, TopP(p).apply(rows), TopK(k).apply(rows), strict=True):
        possible = set(kept(row))
        assert set(kept(by_p)) == possible & set(by_sorting(row, p=p))
        assert set(kept(by_k)) == possible & set(by_sorting(row, k=k))


@given(rows=rows_of_logits(), p=st.floats(0.001, 0.999))
def test_top_p_keeps_the_smallest_set(rows: Tensor, p: float) -> None:
    for row, left in zip(rows, TopP(p).apply(rows), strict=True):
        probabilities = torch.softmax(row.double(), dim=-1)
        inside = probabilities[kept(left)]
        assert float(inside.sum()) >= p - 1e-6
        # Without its least likely id it would not reach p.
        assert float(inside.sum() - inside.min()) < p + 1e-6


@given(rows=rows_of_logits(), p=st.floats(0, 1))
def test_min_p_keeps_what_is_likely_enough(rows: Tensor, p: float) -> None:
    for row, left in zip(rows, MinP(p).apply(rows), strict=True):
        shares = torch.exp(row.double() - row.double().max())
        inside = torch.zeros(len(row), dtype=torch.bool)
        inside[kept(left)] = True
        assert bool((shares[inside] >= p - 1e-5).all())
        assert bool((shares[~inside] <= p + 1e-5).all())
        assert inside[row.argmax()]


@given(rows=rows_of_logits(), a=st.floats(0.01, 1), b=st.floats(0.01, 1), k=st.integers(1, 50))
def test_filters_only_ever_narrow(rows: Tensor, a: float, b: float, k: int) -> None:
    for rule in (TopK(k), TopP(a), MinP(b)):
        left = rule.apply(rows)
        is_kept = left > -torch.inf
        assert torch.equal(left[is_kept], rows[is_kept]) and bool(is_kept.any(-1).all())
        assert torch.equal(
            MinP(b).apply(left) > -torch.inf, is_kept & (MinP(b).apply(rows) == rows)
        )
    both = TopK(k).apply(TopK(k + 3).apply(rows))
    assert torch.equal(both, TopK(k).apply(rows))
    assert torch.equal(TopK(k).apply(both), both)
    low, high = sorted((a, b))
    narrow, wide = TopP(low).apply(rows) > -torch.inf, TopP(high).apply(rows) > -torch.inf
    assert not bool((narrow & ~wide).any())


def test_a_repetition_penalty_lowers_what_was_seen() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0, -1.0]])
    seen = torch.tensor([[True, True, False, False]])
    assert RepetitionPenalty(2.0).apply(logits, seen).tolist() == [[1.0, -4.0, 1.0, -1.0]]
    assert RepetitionPenalty(1.0).apply(logits, seen) is logits
    assert RepetitionPenalty(2.0).apply(logits) is logits
    sampler = Sampler.of(0.0, repetition_penalty=3.0)
    assert sampler.needs_history and not Sampler.of(0.5, 3, 0.5, 0.5).needs_history
    assert int(sampler.choose(logits, numbers(1), seen)) == 2


def test_a_tiny_temperature_does_not_overflow() -> None:
    logits = torch.tensor([1000.0, 999.0, -1000.0])
    assert Sampler.of(temperature=1e-30).choose(logits, numbers()) == 0


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-320, 1e-50, 1e-38, 1e-6, 1, 1e50, 1e300])
@pytest.mark.parametrize("penalty", [5e-324, 1e-300, 1e-38, 1.0, 1e38, 1e300, 10**308])
@pytest.mark.parametrize(("top_k", "top_p", "min_p"), [(10**30, 1e-320, 5e-324), (3, 0.9, 1.0)])
def test_no_value_that_is_allowed_leads_out_of_the_vocabulary(
    temperature: float, penalty: float, top_k: int, top_p: float, min_p: float
) -> None:
    sampler = Sampler.of(temperature, top_k, top_p, min_p, penalty)
    rows = torch.tensor([[3.0, 0.0, -5.0, 2.0], [-1.0, -2.0, -3e9, -1.0], [0.0, 0.0, 0.0, 1e9]])
    for seen in (torch.tensor([True, True, True, False]), torch.ones(4, dtype=torch.bool)):
        drawn = sampler.draw(rows, numbers(3), seen.expand(3, 4))
        assert all(0 <= id < 4 for id in drawn.tolist())


def test_a_temperature_too_small_to_divide_by_is_greedy() -> None:
    assert Temperature(1e-50) == Temperature(0)
    logits = torch.tensor([1.0, 2.0, 2.0])
    for sampler in (Sampler.of(1e-320, top_p=0.5), Sampler((TopK(2), Temperature(1e-50)))):
        assert sampler.choose(logits, torch.tensor(0.99)) == 1


def test_a_temperature_too_large_to_compute_with_is_even() -> None:
    sampler = Sampler((TopK(2), Temperature(1e300)))
    drawn = {int(sampler.choose(log_of(0.1, 0.7, 0.2), numbers(seed=seed))) for seed in range(20)}
    assert drawn == {1, 2}


def test_a_draw_is_where_its_number_falls_in_id_order() -> None:
    logits = log_of(0.25, 0.5, 0.0, 0.25).expand(6, 4)
    places = torch.tensor([0.0, 0.2499, 0.2501, 0.7499, 0.7501, 1 - 2**-32], dtype=torch.float64)
    assert Sampler().choose(logits, places).tolist() == [0, 0, 1, 1, 3, 3]


@given(rows=rows_of_logits(), place=st.one_of(st.just(1 - 2**-32), st.just(0.0), st.floats(0, 0.9)))
def test_no_id_without_probability_is_drawn(rows: Tensor, place: float) -> None:
    at = torch.full((len(rows),), place, dtype=torch.float64)
    for sampler in (Sampler(), Sampler.of(0.7, top_p=0.8), Sampler.of(2.0, top_k=3)):
        ids = sampler.choose(rows, at)
        assert bool((rows.gather(-1, ids[:, None]) > -torch.inf).all())


@given(rows=rows_of_logits(), seed=st.integers(0, 100))
def test_a_row_is_drawn_as_if_alone(rows: Tensor, seed: int) -> None:
    at = numbers(len(rows), seed=seed)
    for sampler in (Sampler(), Sampler.of(0.7, top_p=0.8), Sampler.of(0.0), Sampler.of(1.0, 5)):
        alone = [int(sampler.choose(row, place)) for row, place in zip(rows, at, strict=True)]
        assert sampler.choose(rows, at).tolist() == alone


def test_draws_follow_the_probabilities() -> None:
    logits = log_of(0.5, 0.25, 0.125, 0.125).expand(20_000, 4)
    at = torch.tensor(uniforms(1, 0, 20_000), dtype=torch.float64)
    drawn = Sampler().choose(logits, at)
    shares = torch.bincount(drawn, minlength=4) / len(drawn)
    assert torch.allclose(shares, torch.tensor([0.5, 0.25, 0.125, 0.125]), atol=0.02)


def test_the_numbers_of_a_seed_are_computed_from_their_place() -> None:
    of_seed = Uniforms(3)
    assert [of_seed[place] for place in (500, 0, 1, 127, 128)] == [
        uniforms(3, place, 1)[0] for place in (500, 0, 1, 127, 128)
    ]
    values = uniforms(3, 0, 10_000)
    assert all(0 <= value < 1 for value in values) and len(set(values)) > 9_990
    assert abs(sum(values) / len(values) - 0.5) < 0.02
    assert uniforms(3, 0, 5) != uniforms(4, 0, 5)
    # Texts of old seeds must not change.
    assert uniforms(0, 0, 2) == [0.4415598849300295, 0.1427158210426569]


def test_temperature_evens_out_or_sharpens() -> None:
    logits = log_of(0.8, 0.2)
    assert torch.softmax(Temperature(0.5).apply(logits), 0)[0] == pytest.approx(16 / 17)
    assert torch.softmax(Temperature(2.0).apply(logits), 0)[0] == pytest.approx(2 / 3)


def test_rules_apply_in_order() -> None:
    logits = log_of(0.4, 0.3, 0.2, 0.1)
    draws = {
        int(Sampler((TopK(2), TopP(0.5))).choose(logits, numbers(seed=seed))) for seed in range(50)
    }
    assert draws == {0}
    draws = {
        int(Sampler((TopP(0.5), TopK(2))).choose(logits, numbers(seed=seed))) for seed in range(50)
    }
    assert draws == {0, 1}


@pytest.mark.parametrize("values", [[math.nan, 1.0], [math.inf, 1.0], [-math.inf, -math.inf]])
@pytest.mark.parametrize(
    "sampler", [Sampler(), Sampler.of(0.0), Sampler.of(0.7, 1, 0.5, 0.1)], ids=str
)
def test_scores_that_are_not_finite_are_an_error(sampler: Sampler, values: list[float]) -> None:
    rows = torch.tensor([[1.0, 2.0], values])
    with pytest.raises(CheckpointError, match="not finite"):
        sampler.choose(rows, numbers(2))
    drawn = sampler.draw(rows, numbers(2)).tolist()
    assert drawn[0] in (0, 1) and drawn[1] == NO_ID


def test_samplers_are_values() -> None:
    assert Sampler.of(0.5, 3, 0.9, 0.1, 1.2) == Sampler.of(0.5, 3, 0.9, 0.1, 1.2)
    assert len({Sampler.of(0.5), Sampler.of(0.5), Sampler.of(0.6)}) == 2
    whole = Sampler.of(0.5, 3, 0.9, 0.1, 1.2)
    assert {type(rule) for rule in whole.rules} | {Greedy} == set(get_args(Rule))


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        (Temperature, -0.1),
        (Temperature, math.nan),
        (Temperature, math.inf),
        (Temperature, 10**400),
        (TopK, 0),
        (TopK, -1),
        (TopK, 2.5),
        (TopP, 0.0),
        (TopP, 1.5),
        (TopP, -0.5),
        (TopP, math.nan),
        (TopP, True),
        (MinP, -0.1),
        (MinP, 1.1),
        (MinP, math.nan),
        (RepetitionPenalty, 0.0),
        (RepetitionPenalty, -1.0),
        (RepetitionPenalty, math.inf),
    ],
)
def test_a_value_out_of_range_is_refused(rule: type[Any], value: float) -> None:
    with pytest.raises(ConfigError, match=str(value)):
        rule(value)
