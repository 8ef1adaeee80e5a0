"""`groundup sweep` and `groundup ablate`: many runs around one base, and a table of results."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from groundup.cli.arguments import Positional
from groundup.cli.terminal import print_table, printable
from groundup.config import Settings
from groundup.errors import DataError

if TYPE_CHECKING:
    from groundup.experiments.spec import SweepConfig
    from groundup.experiments.sweep import SweepOutcome


class SweepFlags(Settings):
    """Where and how trials are run."""

    folder: Path = Path("sweeps")
    """Folder for sweep folders."""

    jobs: int | None = Field(default=None, ge=1)
    """Concurrent trials. Default: one per CUDA device, or one on a CPU."""

    dry_run: bool = False
    """List the trials with their cost and progress; run none."""

    def carry_out(
        self, spec: "SweepConfig", run: "Callable[..., SweepOutcome]", **options: Any
    ) -> int:
        """Run the trials that are left and print the results, or list all; the exit status."""
        path = self.folder / spec.name
        if self.dry_run:
            return _print_outlook(spec, path)
        return _finish(run(spec, path, jobs=self.jobs, **options), path)


class Sweep(SweepFlags):
    """Run a sweep: many settings around one base run, each with several seeds.

    The same command continues after a stop or a kill, and retries failed trials.
    """

    spec: Positional[Path]
    """Sweep file (YAML)."""


def sweep(arguments: Sweep) -> int:
    from groundup.experiments.spec import load_sweep
    from groundup.experiments.sweep import run_sweep

    return arguments.carry_out(load_sweep(arguments.spec), run_sweep)


class Ablate(SweepFlags):
    """Run an ablation: the recipe without each of its parts, at equal parameters and tokens.

    Each variant runs at each learning rate with the first seed; the best is repeated with the other
    seeds. The same command continues after a stop or a kill, or with more learning rates.
    """

    config: Positional[Path]
    """Settings file of the base run, as for groundup train."""

    learning_rates: tuple[float, ...] = ()
    """Learning rates to try per variant. Default: 0.5x, 1x and 2x the base's."""

    variants: tuple[str, ...] = ()
    """Variants to run, by name. Default: all."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds for each variant."""

    tokens: int | None = None
    """Training tokens per run. Default: the base run's."""

    name: str = "ablations"
    """Name of the sweep."""


def ablate(arguments: Ablate) -> int:
    from groundup.config import load_settings
    from groundup.experiments.ablation import ablation_spec
    from groundup.experiments.sweep import run_ablation
    from groundup.runs.config import RunConfig
    from groundup.training.resolve import with_vocabulary

    spec = ablation_spec(
        with_vocabulary(load_settings(RunConfig, arguments.config)),
        name=arguments.name,
        variants=arguments.variants,
        learning_rates=arguments.learning_rates,
        seeds=arguments.seeds,
        tokens=arguments.tokens,
    )
    if arguments.dry_run:
        # The best rates, for the other seeds, are not known yet.
        spec = spec.model_copy(update={"seeds": spec.seeds[:1]})
    return arguments.carry_out(spec, run_ablation)


def _finish(outcome: "SweepOutcome", folder: Path) -> int:
    """Print the tables of the sweep's report; return 0, or 128 + the signal that stopped it."""
    from groundup.cli.report import print_document_table
    from groundup.experiments.report.comparison import compare
    from groundup.experiments.sweep_folder import SweepFolder

    if outcome.stopped_by is not None:
        print("stopped before the end: the same command continues")
        return 128 + outcome.stopped_by
    records = list(SweepFolder(folder).records().values())
    if not records:
        raise DataError(f"no trial of {folder} could be run: fix what the warnings above name")
    if all(record.status == "failed" for record in records):
        raise DataError(
            f"all {len(records)} trials of {folder} failed, the last one with: "
            f"{records[-1].reason}. Fix that; the same command tries them again"
        )
    comparison = compare([folder])
    for table in comparison.ablations or [comparison.results]:
        print_document_table(table)
    for warning in comparison.warnings:
        print(printable(warning))
    print(f"the runs are in {folder / 'runs'}; groundup report {folder} shows them")
    return 0


def _print_outlook(spec: "SweepConfig", folder: Path) -> int:
    """Print each trial with its size, length and state."""
    from groundup.experiments.sweep import look_ahead
    from groundup.planner.parameters import count_parameters, training_flops_per_token

    rows = []
    for trial, state in look_ahead(spec, folder):
        config = trial.config
        length = [f"{config.minutes} minutes", "", ""]
        if config.num_steps is not None:
            num_tokens = config.num_steps * config.tokens_per_step
            flops = num_tokens * training_flops_per_token(config.model)
            length = [f"{config.num_steps:,}", f"{num_tokens:,}", f"{flops:.3g}"]
        num_parameters = sum(count_parameters(config.model).values())
        rows.append([trial.name, f"{num_parameters:,}", *length, state])
    headers = ("trial", "parameters", "steps", "tokens", "FLOPs", "state")
    print_table(f"{spec.name}: trials", headers, rows)
    num_left = sum(row[-1] in ("begun", "to run") for row in rows)
    print(f"{num_left} of {len(rows)} trials are left")
    if spec.is_search:
        print(f"a search proposes {spec.num_trials} points, one after the other as it runs")
    return 0
