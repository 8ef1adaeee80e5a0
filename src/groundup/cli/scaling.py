"""`groundup scaling`: a ladder of sizes at fixed compute, the laws through it, and their test."""

from pathlib import Path

from pydantic import Field
from tyro.conf import Positional

from groundup.config import Settings


class Arguments(Settings):
    """Find the best size for each of several budgets, and predict the next budget's loss.

    Each budget of FLOPs is spent on models of several widths; a parabola finds the best size, power
    laws through these predict the next budget, which is then trained to see whether they hold. The
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

    jobs: int | None = Field(None, ge=1)
    """Trials at once. If not given: one on each CUDA device, or one on a CPU."""

    dry_run: bool = False
    """List the trials and what they cost, and run none."""


def run(arguments: Arguments) -> int:
    """Run what is left to run, fit, predict, check and print."""
    from groundup.cli.sweep import exit_status, print_outcome, print_outlook
    from groundup.config import load_settings
    from groundup.experiments.isoflop import isoflop_spec
    from groundup.experiments.sweep import run_isoflop
    from groundup.runs.config import RunConfig
    from groundup.training.resolve import with_vocabulary

    spec = isoflop_spec(
        with_vocabulary(load_settings(RunConfig, arguments.config)),
        budgets=arguments.budgets,
        widths=arguments.widths,
        name=arguments.name,
        learning_rates=arguments.learning_rates,
        seeds=arguments.seeds,
    )
    path = arguments.folder / spec.name
    if arguments.dry_run:
        print_outlook(spec, path)
        return 0
    outcome = run_isoflop(spec, path, check=arguments.check, jobs=arguments.jobs)
    if outcome.stopped_by is None:
        print_outcome(path)
    return exit_status(outcome.stopped_by, path)
