"""`groundup scaling`: a ladder of sizes at fixed compute, the laws through it, and their test."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tyro.conf import Positional

if TYPE_CHECKING:
    from groundup.experiments.fits import FloorFit
    from groundup.experiments.scaling import ScalingOutcome
    from groundup.experiments.spec import SweepConfig


@dataclass(frozen=True)
class Arguments:
    """Find the best size for each of several budgets, and predict the next budget's loss.

    Each budget of FLOPs is spent on models of several widths; a parabola finds the best size, power
    laws through these predict the next budget, which is then trained to see whether they hold. With
    four budgets or more, a law with a loss that stays whatever the budget is set beside them. The
    same command goes on after a stop or a kill.
    """

    config: Positional[Path]
    """The YAML file of the base run; other widths keep its ratio of depth and its size of heads."""

    budgets: tuple[float, ...]
    """Training budgets in FLOPs, at least two."""

    widths: tuple[int, ...]
    """Values of d_model, at least three, multiples of the base's head size."""

    learning_rates: tuple[float, ...] = ()
    """Learning rates to try for each model, the best counts; the base's if not given."""

    seeds: tuple[int, ...] = (0,)
    """Seeds to repeat each run with."""

    name: str = "scaling"
    """Name of the folder."""

    folder: Path = Path("sweeps")
    """Where that folder is made."""

    check: bool = True
    """Train the predicted size too, and set its loss beside the prediction."""

    jobs: int | None = None
    """Trials at once. If not given: one on each CUDA device, or one on a CPU."""

    dry_run: bool = False
    """List the trials and what they cost, and run none."""


def run(arguments: Arguments) -> int:
    """Run what is left to run, fit, predict, check and print."""
    from groundup.cli.sweep import check_jobs, exit_status, print_expected_time, print_trials
    from groundup.config import load_settings
    from groundup.experiments.ladder import scaling_spec
    from groundup.experiments.scaling import run_scaling
    from groundup.experiments.sweep import look_ahead
    from groundup.runs.config import RunConfig

    check_jobs(arguments.jobs)
    spec = scaling_spec(
        load_settings(RunConfig, arguments.config),
        budgets=arguments.budgets,
        widths=arguments.widths,
        name=arguments.name,
        learning_rates=arguments.learning_rates,
        seeds=arguments.seeds,
    )
    path = arguments.folder / spec.name
    if arguments.dry_run:
        outlook = look_ahead(spec, path)
        print_trials(f"{spec.name}: trials", outlook, path)
        print_expected_time(outlook.left, arguments.jobs)
        if arguments.check:
            print_what_follows(spec)
        return 0
    outcome = run_scaling(spec, path, check=arguments.check, jobs=arguments.jobs)
    if outcome.fits:
        print_scaling(outcome)
    return exit_status(outcome.stopped_by, path)


def print_what_follows(spec: "SweepConfig") -> None:
    """The trials that depend on how the ladder ends: the next budget is known, its size is not."""
    from groundup.experiments.ladder import budget_of
    from groundup.experiments.rate_search import LEARNING_RATE

    *_, before, last = sorted(set(map(budget_of, spec.variants)))
    count = len(spec.grid[LEARNING_RATE]) * len(spec.seeds)
    print(
        f"then {count} more trial{'' if count == 1 else 's'} of {last * last / before:.3g} FLOPs "
        f"with the predicted size, not counted above"
    )


def print_scaling(outcome: "ScalingOutcome") -> None:
    """The ladder, the best of each budget, and the prediction."""
    from groundup.cli.tables import print_figures, print_table

    print_table(
        str(outcome.folder),
        ("FLOPs", "width", "layers", "parameters", "tokens", "learning rate", "loss"),
        [
            [
                f"{rung.budget_flops:.3g}",
                f"{rung.d_model:,}",
                f"{rung.num_layers}",
                f"{rung.num_parameters:,}",
                f"{rung.tokens:,}",
                f"{rung.learning_rate:g}",
                f"{rung.loss:.4f}",
            ]
            for rung in outcome.rungs
        ],
    )
    print_table(
        "best size for each budget",
        ("FLOPs", "parameters", "loss", ""),
        [
            [
                f"{fit.budget_flops:.3g}",
                f"{fit.best_parameters:,.0f}",
                f"{fit.best_loss:.4f}",
                "" if fit.is_inside else "at the end of the ladder: add widths",
            ]
            for fit in outcome.fits
        ],
    )
    figures = []
    if sum(fit.is_inside for fit in outcome.fits) < 2:
        figures.append(("not to be trusted", "fewer than two best sizes lie inside the ladder"))
    if outcome.size_law is not None and outcome.loss_law is not None:
        figures.append(("best size", f"grows as FLOPs^{outcome.size_law.exponent:.3f}"))
        figures.append(("its loss", f"falls as FLOPs^{outcome.loss_law.exponent:.4f}"))
    if outcome.floor_fit is not None:
        figures += _floor_figures(outcome.floor_fit)
    prediction = outcome.prediction
    if prediction is not None:
        figures += [
            ("next budget", f"{prediction.budget_flops:.3g} FLOPs"),
            ("best size there", f"{prediction.best_parameters:,.0f} parameters"),
            (
                "nearest width",
                f"{prediction.d_model:,} with {prediction.num_parameters:,} parameters",
            ),
            ("predicted loss", f"{prediction.predicted_loss:.4f}"),
        ]
        if prediction.predicted_with_floor is not None:
            figures.append(("predicted with a floor", f"{prediction.predicted_with_floor:.4f}"))
        if prediction.measured_loss is not None and prediction.error is not None:
            figures.append(("measured loss", f"{prediction.measured_loss:.4f}"))
            figures.append(("measured less predicted", f"{prediction.error:+.4f}"))
            if prediction.predicted_with_floor is not None:
                error = prediction.measured_loss - prediction.predicted_with_floor
                figures.append(("the same with a floor", f"{error:+.4f}"))
    print_figures("the laws", figures)


def _floor_figures(fit: "FloorFit") -> list[tuple[str, str]]:
    """The law with a floor, how sure the floor is, and which law foresaw the last budget better."""
    law = fit.law
    closer = "the one with a floor" if fit.is_closer else "the power law"
    return [
        ("or, with a floor", f"falls to {law.floor:.4f} as FLOPs^{law.exponent:.4f}"),
        (
            "the floor",
            f"{fit.least_floor:.4f} to {fit.greatest_floor:.4f} without any one budget",
        ),
        (
            "without the last budget",
            f"the power law misses it by {fit.power_law_missed_by:+.4f}, the one with a floor by "
            f"{fit.missed_by:+.4f}: {closer} is closer",
        ),
    ]
