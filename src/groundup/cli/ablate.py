"""`groundup ablate`: what each part of a recipe is worth, at its own best learning rate."""

from groundup.cli.sweep import StudyFlags


class Arguments(StudyFlags):
    """Train a recipe again without each of its parts, matched in parameters and tokens.

    Every variant is tried at each learning rate (by default half of, once and twice the base's)
    with the first seed; its best one is repeated with the other seeds. The same command goes on
    after a stop or a kill, and with more learning rates.
    """

    variants: tuple[str, ...] = ()
    """Which ablations to run, by name; all of them if not given."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds to repeat each variant with."""

    tokens: int | None = None
    """Tokens to train each run on; as many as the base run if not given."""

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
