"""`groundup ablate`: what each part of a recipe is worth, at its own best learning rate."""

from groundup.cli.sweep import StudyFlags


class Arguments(StudyFlags):
    """Run an ablation: the recipe without each of its parts, at equal parameters and tokens.

    Each variant runs at each learning rate (default: 0.5x, 1x and 2x the base's) with the first
    seed; the best is repeated with the other seeds. The same command continues after a stop or a
    kill, or with more learning rates.
    """

    variants: tuple[str, ...] = ()
    """Variants to run, by name. Default: all."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds for each variant."""

    tokens: int | None = None
    """Training tokens per run. Default: the base run's."""

    name: str = "ablations"
    """Name of the sweep."""


def run(arguments: Arguments) -> int:
    """Run what is left to run and print the base and its variants."""
    from groundup.experiments.ablation import ablation_spec
    from groundup.experiments.sweep import run_ablation

    spec = ablation_spec(
        arguments.base(),
        name=arguments.name,
        variants=arguments.variants,
        learning_rates=arguments.learning_rates,
        seeds=arguments.seeds,
        tokens=arguments.tokens,
    )
    if arguments.dry_run:
        # Which rates the other seeds are for is not known yet.
        spec = spec.model_copy(update={"seeds": spec.seeds[:1]})
    return arguments.carry_out(spec, run_ablation)
