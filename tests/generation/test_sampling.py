"""Sampling rules: what each keeps, ties, and invalid values."""

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from groundup.errors import ConfigError
from groundup.generation.request import NO_ID, Sampler
from groundup.generation.sampling import apply_rules, penalize, sample, uniforms


def kept(logits: Tensor) -> list[int]:
    return torch.nonzero(logits > -torch.inf).flatten().tolist()


def log_of(*probabilities: float) -> Tensor:
    return torch.tensor(probabilities).log()


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=generator(seed), dtype=torch.float64)


def sampled(sampler: Sampler, logits: Tensor) -> list[int]:
    """All ids sampled for evenly spaced numbers."""
    at = torch.arange(2000, dtype=torch.float64) / 2000
    return sorted(set(sample(sampler, logits.expand(2000, -1), at).tolist()))


def by_sorting(logits: Tensor, k: int | None = None, p: float | None = None) -> list[int]:
    """Reference for top-k and top-p: a stable sort of one row in float64."""
    order = logits.argsort(descending=True, stable=True)
    if k is not None:
        return sorted(order[:k].tolist())
    assert p is not None
    weights = torch.exp(logits - logits.max()).double()[order]
    reached_before = torch.cat([torch.zeros(1, dtype=torch.float64), weights.cumsum(0)[:-1]])
    return sorted(order[reached_before < p * weights.sum()].tolist())


@pytest.mark.parametrize(
    ("settings", "logits", "ids"),
    [
        ({"temperature": 0.0}, torch.tensor([1.0, 3.0, 2.0]), [1]),
        ({"temperature": 0.0}, torch.tensor([0.0, 7.0, 7.0]), [1]),
        ({"top_k": 3}, torch.tensor([0.0, 2.0, 1.0, 2.0, 1.0]), [1, 2, 3]),
        *(({"top_p": p}, log_of(0.5, 0.25, 0.125, 0.125), [*range(n)])
          for p, n in ((0.1, 1), (0.5, 1), (0.5001, 2), (0.75, 2), (0.76, 3), (1.0, 4))),
        ({"top_p": 0.5}, log_of(0.125, 0.25, 0.125, 0.25, 0.25), [1, 3]),
        ({"min_p": 0.49}, log_of(0.4, 0.2, 0.19, 0.21), [0, 1, 3]),
        # First top-k, then top-p of the rest.
        ({"top_k": 2, "top_p": 0.5}, log_of(0.4, 0.3, 0.2, 0.1), [0]),
    ],
)  # fmt: skip
def test_rules_keep_the_most_likely_ids_and_lower_ids_on_ties(
    settings: dict[str, Any], logits: Tensor, ids: list[int]
) -> None:
    assert sampled(Sampler(**settings), logits) == ids


@st.composite
def rows_of_logits(draw: st.DrawFn) -> Tensor:
    """Rows with many ties, long tails, outliers and removed ids."""
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
def test_rules_keep_the_first_ids_of_a_full_sort(rows: Tensor, p: float, k: int) -> None:
    for rule in ({"p": p}, {"k": k}):
        sampler = Sampler(**{f"top_{name}": value for name, value in rule.items()})
        for row, left in zip(rows, apply_rules(sampler, rows), strict=True):
            assert set(kept(left)) == set(kept(row)) & set(by_sorting(row, **rule))


@given(
    row=rows_of_logits(),
    k=st.sampled_from([None, 1, 3, 40]),
    p=st.sampled_from([1.0, 0.9, 0.4, 0.01]),
    min_p=st.sampled_from([0.0, 0.2]),
    temperature=st.sampled_from([0.5, 1.0, 3.0]),
)
@settings(max_examples=40)
def test_samples_have_the_probabilities_that_the_rules_leave(
    row: Tensor, k: int | None, p: float, min_p: float, temperature: float
) -> None:
    sampler = Sampler(top_k=k, top_p=p, min_p=min_p, temperature=temperature)
    wanted = apply_rules(sampler, row[0]).softmax(-1)
    at = torch.tensor(uniforms(range(4000), [0] * 4000), dtype=torch.float64)
    found = sample(sampler, row[0].expand(4000, -1), at).bincount(minlength=len(wanted)) / 4000
    assert float(found[wanted == 0].sum()) == 0
    # Total variation, whose expectation is below half the sum of the standard deviations.
    expected = (wanted * (1 - wanted) / 4000).sqrt().sum() / 2
    assert float((found - wanted).abs().sum() / 2) <= expected + 0.04


def test_the_repetition_penalty_lowers_seen_ids() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0, -1.0]])
    seen = torch.tensor([[True, True, False, False]])
    assert penalize(logits, seen, 2.0).tolist() == [[1.0, -4.0, 1.0, -1.0]]
    sampler = Sampler(temperature=0.0, repetition_penalty=3.0)
    assert sampler.needs_history and not Sampler(temperature=0.5, top_k=3).needs_history
    assert int(sample(sampler, logits, numbers(1), seen)) == 2
    assert int(sample(sampler, logits, numbers(1))) == 0


def test_extreme_settings_never_sample_outside_the_vocabulary() -> None:
    rows = torch.tensor([[3.0, 0.0, -5.0, 2.0], [-1.0, -2.0, -3e9, -1.0], [0.0, 0.0, 0.0, 1e9]])
    for temperature, penalty, (top_k, top_p, min_p), seen in itertools.product(
        [0.0, 5e-324, 1e-50, 1e-38, 1e-6, 1, 1e6],
        [0.01, 1.0, 100],
        [(10**9, 1e-320, 5e-324), (3, 0.9, 1.0)],
        [torch.tensor([True, True, True, False]), torch.ones(4, dtype=torch.bool)],
    ):
        sampler = Sampler(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=penalty,
        )
        ids = sample(sampler, rows, numbers(3), seen.expand(3, 4))
        assert all(0 <= id < 4 for id in ids.tolist()), sampler


def test_temperature_flattens_or_sharpens() -> None:
    at, logits = torch.arange(4000) / 4000, log_of(0.8, 0.2).expand(4000, 2)
    for temperature, expected in ((0.5, 16 / 17), (2.0, 2 / 3), (1e6, 0.5), (1e-50, 1.0)):
        ids = sample(Sampler(temperature=temperature), logits, at)
        assert float((ids == 0).double().mean()) == pytest.approx(expected, abs=1e-3)
    assert Sampler(temperature=1e-50) == Sampler(temperature=0)


def test_a_sample_inverts_the_cumulative_distribution_in_id_order() -> None:
    logits = log_of(0.25, 0.5, 0.0, 0.25).expand(6, 4)
    at = torch.tensor([0.0, 0.2499, 0.2501, 0.7499, 0.7501, 1 - 2**-32], dtype=torch.float64)
    assert sample(Sampler(), logits, at).tolist() == [0, 0, 1, 1, 3, 3]


@given(rows=rows_of_logits(), at=st.one_of(st.sampled_from([0.0, 1 - 2**-32]), st.floats(0, 0.9)))
def test_rows_are_independent_and_zero_probability_is_never_sampled(
    rows: Tensor, at: float
) -> None:
    every = torch.full((len(rows),), at, dtype=torch.float64)
    for rules in ({}, {"temperature": 0.7, "top_p": 0.8}, {"temperature": 0.0}, {"top_k": 3}):
        sampler = Sampler(**rules)
        ids = sample(sampler, rows, every)
        assert bool((rows.gather(-1, ids[:, None]) > -torch.inf).all())
        assert ids.tolist() == [int(sample(sampler, row, every[0])) for row in rows]


def test_random_numbers_are_a_function_of_seed_and_index() -> None:
    values = uniforms([3] * 10_000, range(10_000))
    assert all(0 <= value < 1 for value in values) and len(set(values)) > 9_990
    assert uniforms([3, 4], [7, 7]) == [values[7], uniforms([4], [7])[0]] != [values[7]] * 2
    # The text of a seed must never change.
    assert uniforms([0, 0], [0, 1]) == [0.4415598849300295, 0.1427158210426569]


@pytest.mark.parametrize("values", [[math.nan, 1.0], [math.inf, 1.0], [-math.inf, -math.inf]])
def test_non_finite_logits_give_no_id(values: list[float]) -> None:
    rows = torch.tensor([[1.0, 2.0], values])
    for rules in ({}, {"temperature": 0.0}, {"temperature": 0.7, "top_k": 1, "top_p": 0.5}):
        ids = sample(Sampler(**rules), rows, numbers(2)).tolist()
        assert ids[0] in (0, 1) and ids[1] == NO_ID


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [-0.1, math.nan, math.inf, 10**400]),
        ("top_k", [0, -1, 2.5, True]),
        ("top_p", [0.0, 1.5, -0.5, math.nan, True]),
        ("min_p", [-0.1, 1.1, math.nan]),
        ("repetition_penalty", [0.0, -1.0, 101, math.inf]),
    ],
)
def test_a_sampling_value_out_of_range_is_rejected(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ConfigError, match=name):
            Sampler(**{name: value})
