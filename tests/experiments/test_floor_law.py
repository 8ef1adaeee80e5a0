"""A loss that no budget takes away: found where it was put, and not where it was not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundup.experiments.fits import (
    PowerLaw,
    fit_floor_law,
    fit_power_law,
    judge_floor_law,
)
from groundup.experiments.scaling import BudgetFit, fit_floor, predict_next
from groundup.runs.config import RunConfig

BUDGETS = [1e15, 3e15, 1e16, 3e16, 1e17]
TRUTH = PowerLaw(2.8 * 1e15**0.15, -0.15, floor=1.7)
# What a seed does to a loss.
NOISE = [0.002, -0.001, 0.0015, -0.002, 0.001]


def losses_of(law: PowerLaw, noise: float = 0.0) -> list[float]:
    return [law.at(x) + noise * shift for x, shift in zip(BUDGETS, NOISE, strict=True)]


@given(st.floats(0.3, 3), st.floats(0.1, 3), st.floats(0.05, 0.8))
def test_a_floor_is_found_again(floor: float, fall: float, power: float) -> None:
    law = PowerLaw(fall * 1e15**power, -power, floor)
    fit = fit_floor_law(BUDGETS, losses_of(law))
    assert fit is not None
    assert fit.floor == pytest.approx(floor, rel=1e-3)
    assert fit.exponent == pytest.approx(-power, rel=1e-3)
    assert fit.at(1e18) == pytest.approx(law.at(1e18), rel=1e-5)


def test_three_points_determine_it_exactly() -> None:
    fit = fit_floor_law(BUDGETS[:3], losses_of(TRUTH)[:3])
    assert fit is not None and fit.floor == pytest.approx(1.7, rel=1e-4)
    assert fit_floor_law(BUDGETS[:2], losses_of(TRUTH)[:2]) is None


@pytest.mark.parametrize(
    "losses",
    [
        # A line over the logarithm, falling ever faster, rising, and the same throughout.
        [4.0, 3.5, 3.0, 2.5, 2.0],
        [4.0, 3.9, 3.7, 3.3, 2.5],
        [2.0, 2.1, 2.2, 2.3, 2.4],
        [3.0, 3.0, 3.0, 3.0, 3.0],
    ],
)
def test_what_bends_no_way_to_a_floor_has_none(losses: list[float]) -> None:
    assert judge_floor_law([1e15, 1e16, 1e17, 1e18, 1e19], losses) is None


def test_a_floor_is_nearer_the_last_budget_where_there_is_one() -> None:
    fit = judge_floor_law(BUDGETS, losses_of(TRUTH, noise=1.0))
    assert fit is not None and abs(fit.missed_by) < abs(fit.power_law_missed_by)
    assert fit.least_floor < 1.7 < fit.greatest_floor and fit.law.floor == pytest.approx(1.7, 0.1)
    assert abs(fit.missed_by) < 0.02 < abs(fit.power_law_missed_by)
    truth = TRUTH.at(3e17)
    power_law = fit_power_law(BUDGETS, losses_of(TRUTH, noise=1.0))
    assert abs(fit.law.at(3e17) - truth) < 0.02 < abs(power_law.at(3e17) - truth)


def test_what_was_missed_is_what_a_law_without_the_last_budget_says() -> None:
    losses = losses_of(TRUTH, noise=1.0)
    # In any order of the budgets.
    fit = judge_floor_law(BUDGETS[::-1], losses[::-1])
    assert fit is not None
    power_law = fit_power_law(BUDGETS[:-1], losses[:-1])
    floor_law = fit_floor_law(BUDGETS[:-1], losses[:-1])
    assert floor_law is not None
    assert fit.power_law_missed_by == pytest.approx(losses[-1] - power_law.at(1e17))
    assert fit.missed_by == pytest.approx(losses[-1] - floor_law.at(1e17), abs=1e-6)


def test_fewer_than_four_budgets_offer_no_floor() -> None:
    losses = losses_of(TRUTH)
    assert judge_floor_law(BUDGETS[:3], losses[:3]) is None
    assert judge_floor_law([*BUDGETS[:3], BUDGETS[2]], [*losses[:3], losses[2]]) is None
    assert judge_floor_law(BUDGETS[:4], losses[:4]) is not None


def test_a_floor_that_hangs_on_one_budget_is_not_offered() -> None:
    # A power law without a floor, bent by its last budget alone.
    losses = losses_of(PowerLaw(20.0, -0.05))
    losses[-1] += 0.03
    assert fit_floor_law(BUDGETS, losses) is not None
    assert judge_floor_law(BUDGETS, losses) is None


def fits_of(law: PowerLaw, num_inside: int) -> list[BudgetFit]:
    return [
        BudgetFit(x, 0.1 * x**0.5, law.at(x), place < num_inside) for place, x in enumerate(BUDGETS)
    ]


def test_both_predictions_of_the_next_budget_are_given() -> None:
    fits = fits_of(TRUTH, 5)
    power_law = PowerLaw(20.0, -0.05)
    prediction = predict_next(RunConfig(), fits, PowerLaw(0.1, 0.5), power_law, fit_floor(fits))
    assert prediction.predicted_loss == power_law.at(prediction.budget_flops)
    with_floor = prediction.predicted_with_floor
    assert with_floor == pytest.approx(TRUTH.at(prediction.budget_flops), abs=1e-4)


def test_only_best_sizes_inside_the_ladder_count_for_a_floor() -> None:
    assert fit_floor(fits_of(TRUTH, 4)) is not None
    assert fit_floor(fits_of(TRUTH, 3)) is None
