"""`groundup scaling`: a ladder of sizes at fixed compute, the laws through it, and their test."""

from groundup.cli.sweep import StudyFlags


class Arguments(StudyFlags):
    """Find the best size for each of several budgets, and predict the next budget's loss.

    Each budget of FLOPs is spent on models of several widths, with the base's ratio of depth and
    its size of heads; a parabola finds the best size, power laws through these predict the next
    budget, which is then trained to see whether they hold. The same command goes on after a stop or
    a kill.
    """

    budgets: tuple[float, ...]
    """Training budgets in FLOPs, at least two."""

    widths: tuple[int, ...]
    """Values of d_model, at least three, multiples of the base's head size."""

    seeds: tuple[int, ...] = (0,)
    """Seeds to repeat each run with."""

    name: str = "scaling"
    """Name of the sweep."""

    check: bool = True
    """Train the predicted size too, and set its loss beside the prediction."""


def run(arguments: Arguments) -> int:
    """Run what is left to run, fit, predict, check and print."""
    from groundup.experiments.isoflop import isoflop_spec
    from groundup.experiments.sweep import run_isoflop

    spec = isoflop_spec(
        arguments.base(),
        budgets=arguments.budgets,
        widths=arguments.widths,
        name=arguments.name,
        learning_rates=arguments.learning_rates,
        seeds=arguments.seeds,
    )
    return arguments.carry_out(spec, run_isoflop, check=arguments.check)
