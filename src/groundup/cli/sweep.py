"""`groundup sweep`: many runs around one base, and a table of results."""

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from groundup.cli.arguments import Positional
from groundup.cli.terminal import print_table, printable
from groundup.config import Settings
from groundup.errors import DataError

if TYPE_CHECKING:
    from groundup.experiments.spec import SweepConfig
    from groundup.experiments.sweep import SweepOutcome


class Arguments(Settings):
    """Run a sweep: many settings around one base run, each with several seeds.

    The same command continues after a stop or a kill, and retries failed trials.
    """

    spec: Positional[Path]
    """Sweep file (YAML)."""

    folder: Path = Path("sweeps")
    """Folder for sweep folders."""

    jobs: int | None = Field(default=None, ge=1)
    """Concurrent trials. Default: one per CUDA device, or one on a CPU."""

    dry_run: bool = False
    """List the trials with their cost and progress; run none."""


def run(arguments: Arguments) -> int:
    from groundup.experiments.spec import load_sweep
    from groundup.experiments.sweep import run_sweep

    spec = load_sweep(arguments.spec)
    path = arguments.folder / spec.name
    if arguments.dry_run:
        return _print_outlook(spec, path)
    return _finish(run_sweep(spec, path, jobs=arguments.jobs), path)


def _finish(outcome: "SweepOutcome", folder: Path) -> int:
    """Print the tables of the sweep's report; return 0, or 128 + the signal that stopped it."""
    from groundup.cli.report import print_document_table
    from groundup.experiments.report.comparison import compare

    if outcome.stopped_by is not None:
        print("stopped before the end: the same command continues")
        return 128 + outcome.stopped_by
    records = list(outcome.records.values())
    if not records:
        raise DataError(f"no trial of {folder} could be run: fix what the warnings above name")
    if all(record.status == "failed" for record in records):
        raise DataError(
            f"all {len(records)} trials of {folder} failed, the last one with: "
            f"{records[-1].reason}. Fix that; the same command tries them again"
        )
    comparison = compare([folder])
    print_document_table(comparison.results)
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
