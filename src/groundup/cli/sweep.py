"""`groundup sweep`: many runs around one base, resumable, and a table of what they came to."""

from collections import Counter
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
    from groundup.runs.config import RunConfig


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


class StudyFlags(SweepFlags):
    """A sweep around the run of a settings file."""

    config: Positional[Path]
    """Settings file of the base run, as for groundup train."""

    learning_rates: tuple[float, ...] = ()
    """Learning rates to try per variant."""

    def base(self) -> "RunConfig":
        from groundup.config import load_settings
        from groundup.runs.config import RunConfig
        from groundup.training.resolve import with_vocabulary

        return with_vocabulary(load_settings(RunConfig, self.config))


class Arguments(SweepFlags):
    """Run a sweep: many settings around one base run, each with several seeds.

    The same command continues after a stop or a kill, and retries failed trials.
    """

    spec: Positional[Path]
    """Sweep file (YAML)."""


def run(arguments: Arguments) -> int:
    """Run what is left to run and print the ranking."""
    from groundup.experiments.spec import load_sweep
    from groundup.experiments.sweep import run_sweep

    return arguments.carry_out(load_sweep(arguments.spec), run_sweep)


def _finish(outcome: "SweepOutcome", folder: Path) -> int:
    """Print the tables of the report about the sweep; 0 when every trial has ended, else what a
    process killed by the signal would have. When all trials fail, nothing was found out."""
    from groundup.cli.report import print_document_table
    from groundup.experiments.report.comparison import compare
    from groundup.experiments.sweep_folder import SweepFolder

    if outcome.stopped_by is not None:
        print("stopped before the end: the same command goes on")
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
    """What a sweep would run now: each trial with its size, length and state, or of a search, whose
    trials are known only once they are proposed, how far it is."""
    from groundup.experiments.sweep import look_ahead
    from groundup.experiments.sweep_folder import SweepFolder
    from groundup.planner.parameters import count_parameters, training_flops_per_token

    outlook = look_ahead(spec, folder)
    states = SweepFolder(folder).states(outlook.trials)
    num_left, rows = len(outlook.left), []
    if spec.is_search:
        left = {trial.name for trial in outlook.left}
        ended = Counter(state for name, state in states.items() if name not in left)
        counts = [f"{count} {state}" for state, count in ended.items()] or ["none finished"]
        print(f"{spec.name}: {spec.num_trials} points are proposed while the sweep runs")
        print(f"trials: {', '.join(counts)}, {num_left + outlook.num_to_propose} left")
        return 0
    for trial in outlook.trials:
        config = trial.config
        length = [f"{config.minutes} minutes", "", ""]
        if config.num_steps is not None:
            num_tokens = config.num_steps * config.tokens_per_step
            flops = num_tokens * training_flops_per_token(config.model)
            length = [f"{config.num_steps:,}", f"{num_tokens:,}", f"{flops:.3g}"]
        num_parameters = sum(count_parameters(config.model).values())
        rows.append([trial.name, f"{num_parameters:,}", *length, states[trial.name]])
    headers = ("trial", "parameters", "steps", "tokens", "FLOPs", "state")
    print_table(f"{spec.name}: trials", headers, rows)
    print(f"{num_left} of {len(outlook.trials)} trials are left")
    return 0
