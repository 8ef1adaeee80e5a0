"""The rules of sampling: what each leaves, which of equals stay, what values are refused."""

import itertools
import math
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from groundup.errors import ConfigError
from groundup.generation.sampling import (
    NO_ID,
    Greedy,
    MinP,
    RepetitionPenalty,
    Rule,
    Sampler,
    Temperature,
    TopK,
    TopP,
    Uniforms,
    uniforms,
)


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
    assert p is not None
    weights = torch.exp(logits - logits.max()).double()[order]
    reached_before = torch.cat([torch.zeros(1, dtype=torch.float64), weights.cumsum(0)[:-1]])
    return sorted(order[reached_before < p * weights.sum()].tolist())


@pytest.mark.parametrize(
    ("rule", "logits", "ids"),
    [
        (Greedy(), torch.tensor([1.0, 3.0, 2.0]), [1]),
        (Greedy(), torch.tensor([1.0, 3.0, 3.0, 3.0]), [1]),
        (Temperature(0.0), torch.tensor([0.0, 7.0, 7.0]), [1]),
        (TopK(1), torch.tensor([0.0, 2.0, 1.0, 2.0, 1.0]), [1]),
        (TopK(3), torch.tensor([0.0, 2.0, 1.0, 2.0, 1.0]), [1, 2, 3]),
        (TopK(50), torch.zeros(3), [0, 1, 2]),
        *((TopP(p), log_of(0.5, 0.25, 0.125, 0.125), [*range(n)])
          for p, n in ((0.1, 1), (0.5, 1), (0.5001, 2), (0.75, 2), (0.76, 3), (1.0, 4))),
        (TopP(0.5), torch.zeros(8), [0, 1, 2, 3]),
        (TopP(0.5), log_of(0.125, 0.25, 0.125, 0.25, 0.25), [1, 3]),
        (MinP(0.5), log_of(0.4, 0.2, 0.19, 0.21), [0, 1, 3]),
    ],
)  # fmt: skip
def test_a_rule_leaves_the_likeliest_and_of_equals_the_lower_ids(
    rule: Any, logits: Tensor, ids: list[int]
) -> None:
    left = rule.apply(logits)
    assert kept(left) == ids
    if not isinstance(rule, Greedy | Temperature):
        assert torch.equal(left[ids], logits[ids])


def test_rules_work_on_each_row_by_itself() -> None:
    rows = torch.randn(3, 4, 20, generator=generator())
    for rule in (Greedy(), Temperature(0.7), Temperature(0.0), TopK(4), TopP(0.5), MinP(0.2)):
        together = rule.apply(rows)
        apart = torch.stack([rule.apply(row) for row in rows.reshape(-1, 20)]).reshape(3, 4, 20)
        assert torch.equal(together, apart)


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


@given(rows=rows_of_logits(), p=st.floats(0, 1), k=st.integers(1, 50))
def test_filters_only_ever_narrow(rows: Tensor, p: float, k: int) -> None:
    for rule in (TopK(k), TopP(max(p, 0.01)), MinP(p)):
        left = rule.apply(rows)
        is_kept = left > -torch.inf
        assert torch.equal(left[is_kept], rows[is_kept]) and bool(is_kept.any(-1).all())
    for row, left in zip(rows.double(), MinP(p).apply(rows), strict=True):
        ratios = torch.exp(row - row.max())
        assert bool((ratios[left > -torch.inf] >= p - 1e-5).all())
        assert bool((ratios[left == -torch.inf] <= p + 1e-5).all())


def test_a_repetition_penalty_lowers_what_was_seen() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0, -1.0]])
    seen = torch.tensor([[True, True, False, False]])
    assert RepetitionPenalty(2.0).apply(logits, seen).tolist() == [[1.0, -4.0, 1.0, -1.0]]
    assert RepetitionPenalty(1.0).apply(logits, seen) is logits
    assert RepetitionPenalty(2.0).apply(logits) is logits
    sampler = Sampler.of(0.0, repetition_penalty=3.0)
    assert sampler.needs_history and not Sampler.of(0.5, 3, 0.5, 0.5).needs_history
    assert int(sampler.sample(logits, numbers(1), seen)) == 2


def test_no_value_that_is_allowed_leads_out_of_the_vocabulary() -> None:
    rows = torch.tensor([[3.0, 0.0, -5.0, 2.0], [-1.0, -2.0, -3e9, -1.0], [0.0, 0.0, 0.0, 1e9]])
    for temperature, penalty, (top_k, top_p, min_p), seen in itertools.product(
        [0.0, 5e-324, 1e-50, 1e-38, 1e-6, 1, 1e50, 1e300],
        [0.01, 1.0, 100],
        [(10**30, 1e-320, 5e-324), (3, 0.9, 1.0)],
        [torch.tensor([True, True, True, False]), torch.ones(4, dtype=torch.bool)],
    ):
        sampler = Sampler.of(temperature, top_k, top_p, min_p, penalty)
        ids = sampler.sample(rows, numbers(3), seen.expand(3, 4))
        assert all(0 <= id < 4 for id in ids.tolist()), sampler


def test_a_temperature_beyond_float32_is_greedy_or_even() -> None:
    assert Temperature(1e-50) == Temperature(0)
    logits = torch.tensor([1.0, 2.0, 2.0])
    for sampler in (Sampler.of(1e-320, top_p=0.5), Sampler((TopK(2), Temperature(1e-50)))):
        assert sampler.sample(logits, torch.tensor(0.99)) == 1
    even = Sampler((TopK(2), Temperature(1e300)))
    ids = {int(even.sample(log_of(0.1, 0.7, 0.2), numbers(seed=seed))) for seed in range(20)}
    assert ids == {1, 2}


def test_temperature_evens_out_or_sharpens() -> None:
    logits = log_of(0.8, 0.2)
    assert torch.softmax(Temperature(0.5).apply(logits), 0)[0] == pytest.approx(16 / 17)
    assert torch.softmax(Temperature(2.0).apply(logits), 0)[0] == pytest.approx(2 / 3)


def test_a_sample_is_where_its_number_falls_in_id_order() -> None:
    logits = log_of(0.25, 0.5, 0.0, 0.25).expand(6, 4)
    at = torch.tensor([0.0, 0.2499, 0.2501, 0.7499, 0.7501, 1 - 2**-32], dtype=torch.float64)
    assert Sampler().sample(logits, at).tolist() == [0, 0, 1, 1, 3, 3]


@given(rows=rows_of_logits(), at=st.one_of(st.sampled_from([0.0, 1 - 2**-32]), st.floats(0, 0.9)))
def test_a_row_is_sampled_as_if_alone_and_never_what_has_no_probability(
    rows: Tensor, at: float
) -> None:
    every = torch.full((len(rows),), at, dtype=torch.float64)
    for sampler in (Sampler(), Sampler.of(0.7, top_p=0.8), Sampler.of(0.0), Sampler.of(2.0, 3)):
        ids = sampler.sample(rows, every)
        assert bool((rows.gather(-1, ids[:, None]) > -torch.inf).all())
        assert ids.tolist() == [int(sampler.sample(row, every[0])) for row in rows]


def test_the_numbers_of_a_seed_are_computed_from_their_index() -> None:
    of_seed, indices = Uniforms(3), (500, 0, 1, 127, 128)
    assert [of_seed[index] for index in indices] == [uniforms(3, i, 1)[0] for i in indices]
    values = uniforms(3, 0, 10_000)
    assert all(0 <= value < 1 for value in values) and len(set(values)) > 9_990
    assert uniforms(3, 0, 5) != uniforms(4, 0, 5)
    # Texts of old seeds must not change.
    assert uniforms(0, 0, 2) == [0.4415598849300295, 0.1427158210426569]


def test_rules_apply_in_order() -> None:
    logits = log_of(0.4, 0.3, 0.2, 0.1)
    for rules, ids in (((TopK(2), TopP(0.5)), {0}), ((TopP(0.5), TopK(2)), {0, 1})):
        sampled = {int(Sampler(rules).sample(logits, numbers(seed=seed))) for seed in range(50)}
        assert sampled == ids


@pytest.mark.parametrize("values", [[math.nan, 1.0], [math.inf, 1.0], [-math.inf, -math.inf]])
def test_logits_that_are_not_finite_give_no_id(values: list[float]) -> None:
    rows = torch.tensor([[1.0, 2.0], values])
    for sampler in (Sampler(), Sampler.of(0.0), Sampler.of(0.7, 1, 0.5, 0.1)):
        ids = sampler.sample(rows, numbers(2)).tolist()
        assert ids[0] in (0, 1) and ids[1] == NO_ID


def test_samplers_are_values() -> None:
    whole = Sampler.of(0.5, 3, 0.9, 0.1, 1.2)
    assert whole == Sampler.of(0.5, 3, 0.9, 0.1, 1.2)
    assert len({Sampler.of(0.5), Sampler.of(0.5), Sampler.of(0.6)}) == 2
    assert {type(rule) for rule in whole.rules} | {Greedy} == set(get_args(Rule))


@pytest.mark.parametrize(
    ("rule", "values"),
    [
        (Temperature, [-0.1, math.nan, math.inf, 10**400]),
        (TopK, [0, -1, 2.5]),
        (TopP, [0.0, 1.5, -0.5, math.nan, True]),
        (MinP, [-0.1, 1.1, math.nan]),
        (RepetitionPenalty, [0.0, -1.0, 101, math.inf]),
    ],
)
def test_a_value_out_of_range_is_refused(rule: type[Any], values: list[float]) -> None:
    for value in values:
        with pytest.raises(ConfigError, match=str(value)):
            rule(value)
