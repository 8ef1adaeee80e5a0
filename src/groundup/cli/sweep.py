"""`groundup sweep`: many runs around one base, resumable, and a table of what they came to."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field
from tyro.conf import Positional

from groundup.cli.shared import EngineFlags
from groundup.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from signal import Signals

    from groundup.experiments.spec import SweepConfig
    from groundup.experiments.sweep import Outlook


class Arguments(EngineFlags):
    """Try many settings around one base run, each with several seeds.

    The same command goes on after a stop or a kill, and tries again what failed.
    """

    spec: Positional[Path]
    """The YAML file that says what to try."""

    folder: Path = Path("sweeps")
    """Where the folder of the sweep is made."""

    jobs: int | None = Field(None, ge=1)
    """Trials at once. If not given: one on each CUDA device, or one on a CPU; of a Ray cluster, one
    on each GPU, or one on each machine."""

    dry_run: bool = False
    """List the trials, their cost and how far they are; run none."""


def run(arguments: Arguments) -> int:
    """Run what is left to run and print the ranking."""
    from groundup.experiments.spec import load_sweep
    from groundup.experiments.sweep import run_sweep

    spec = load_sweep(arguments.spec)
    path = arguments.folder / spec.name
    if arguments.dry_run:
        print_outlook(spec, path)
        return 0
    with arguments.connect() as engine:
        outcome = run_sweep(spec, path, jobs=arguments.jobs, engine=engine)
    if outcome.records:
        print_outcome(path)
    return exit_status(outcome.stopped_by, path)


def exit_status(stopped_by: "Signals | None", folder: Path) -> int:
    """0 when every trial has ended, else what a process killed by the signal would have.

    Some trials may fail, where memory ends for example; when all do, nothing was found out.
    """
    from groundup.experiments.sweep_folder import SweepFolder

    if stopped_by is not None:
        print("stopped before the end: the same command goes on")
        return 128 + stopped_by
    records = list(SweepFolder(folder).records().values())
    if not records:
        raise DataError(f"no trial of {folder} could be run: fix what the warnings above name")
    if all(record.status == "failed" for record in records):
        raise DataError(
            f"all {len(records)} trials of {folder} failed, the last one with: "
            f"{records[-1].reason}. Fix that; the same command tries them again"
        )
    return 0


def print_outlook(spec: "SweepConfig", folder: Path, title: str = "trials") -> None:
    """What a sweep would run now, and how far it is; nothing is run."""
    from groundup.experiments.sweep import look_ahead
    from groundup.experiments.sweep_folder import SweepFolder

    outlook = look_ahead(spec, folder)
    states = SweepFolder(folder).states(outlook.trials)
    if spec.is_search:
        _print_search(spec, outlook, states)
    else:
        _print_trials(f"{spec.name}: {title}", outlook, states)


def _print_trials(title: str, outlook: "Outlook", states: "Mapping[str, str]") -> None:
    """Each trial with its size, length and state."""
    from groundup.cli.terminal import print_table
    from groundup.planner.flops import training_flops_per_token
    from groundup.planner.parameters import count_parameters

    rows = []
    for trial in outlook.trials:
        config = trial.config
        length = [f"{config.minutes} minutes", "", ""]
        if config.num_steps is not None:
            num_tokens = config.num_steps * config.tokens_per_step
            flops = num_tokens * training_flops_per_token(config.model)
            length = [f"{config.num_steps:,}", f"{num_tokens:,}", f"{flops:.3g}"]
        num_parameters = sum(count_parameters(config.model).values())
        rows.append([trial.name, f"{num_parameters:,}", *length, states[trial.name]])
    num_left, num_trials = len(outlook.left), len(outlook.trials)
    told = f"{num_left} of {num_trials} trials are left"
    rows.append([told if num_left < num_trials else f"{num_left} trials", "", "", "", "", ""])
    headers = ("trial", "parameters", "steps", "tokens", "FLOPs", "state")
    print_table(title, headers, rows)


def _print_search(spec: "SweepConfig", outlook: "Outlook", states: "Mapping[str, str]") -> None:
    """How far a search is; a trial of it is known only once it is proposed."""
    print(f"{spec.name}: {spec.num_trials} points are proposed while the sweep runs")
    left = {trial.name for trial in outlook.left}
    ended = Counter(state for name, state in states.items() if name not in left)
    counts = [f"{count} {state}" for state, count in ended.items()] or ["none finished"]
    line = f"trials: {', '.join(counts)}, {len(outlook.left)} left"
    if outlook.num_to_propose:
        line += (
            f"; a point that is still to be proposed ({outlook.num_to_propose}) counts as the base"
        )
    print(line)


def print_outcome(folder: Path) -> None:
    """The tables of the report about the sweep, and where everything lies."""
    from groundup.cli.report import print_document_table, print_lines
    from groundup.experiments.report.comparison import compare

    comparison = compare([folder])
    tables = [table for study in comparison.studies for table in study.tables]
    for table in tables or [comparison.results]:
        print_document_table(table)
    print_lines(comparison.warnings)
    print(f"the runs are in {folder / 'runs'}; groundup report {folder} shows them")
