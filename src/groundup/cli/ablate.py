"""`groundup ablate`: what each part of a recipe is worth, at its own best learning rate."""

from pathlib import Path

from pydantic import Field
from tyro.conf import Positional

from groundup.config import Settings


class Arguments(Settings):
    """Train a recipe again without each of its parts, matched in parameters and tokens.

    Every variant is tried at each learning rate with the first seed, and beyond the list while its
    best one is the first or last tried; the best is repeated with the other seeds. The same command
    goes on after a stop or a kill.
    """

    config: Positional[Path]
    """The YAML file of the base run, as groundup train takes it."""

    variants: tuple[str, ...] = ()
    """Which ablations to run, by name; all of them if not given."""

    learning_rates: tuple[float, ...] = ()
    """Learning rates to try; half of, once and twice the base's if not given."""

    extra_rates: int = Field(3, ge=0)
    """Learning rates that a variant may try beyond each end of the list, as far apart as the list's
    last two there; 0 keeps to the list. A single learning rate is never added to."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds to repeat each variant with."""

    tokens: int | None = None
    """Tokens to train each run on; as many as the base run if not given."""

    name: str = "ablations"
    """Name of the folder."""

    folder: Path = Path("sweeps")
    """Where that folder is made."""

    jobs: int | None = Field(None, ge=1)
    """Trials at once. If not given: one on each CUDA device, or one on a CPU."""

    dry_run: bool = False
    """List the trials of the first seed and what they cost, and run none."""


def run(arguments: Arguments) -> int:
    """Run what is left to run and print the base and its variants."""
    from groundup.cli.sweep import exit_status, print_outcome, print_outlook
    from groundup.config import load_settings
    from groundup.experiments.ablation import ablation_spec
    from groundup.experiments.sweep import run_ablation
    from groundup.runs.config import RunConfig
    from groundup.training.resolve import with_vocabulary

    base = with_vocabulary(load_settings(RunConfig, arguments.config))
    spec = ablation_spec(
        base,
        name=arguments.name,
        variants=arguments.variants,
        learning_rates=arguments.learning_rates,
        seeds=arguments.seeds,
        tokens=arguments.tokens,
    )
    path = arguments.folder / spec.name
    if arguments.dry_run:
        first = spec.model_copy(update={"seeds": spec.seeds[:1]})
        print_outlook(first, path, "trials of the first seed")
        return 0
    outcome = run_ablation(spec, path, extra_rates=arguments.extra_rates, jobs=arguments.jobs)
    if outcome.stopped_by is None:
        print_outcome(path)
    return exit_status(outcome.stopped_by, path)
