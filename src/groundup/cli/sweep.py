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

    from groundup.experiments.report.studies import Study
    from groundup.experiments.spec import SweepConfig
    from groundup.experiments.sweep import Outlook
    from groundup.experiments.trials import Trial


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
        _print_trials(f"{spec.name}: {title}", outlook, states, spec.minutes)


def _print_trials(
    title: str, outlook: "Outlook", states: "Mapping[str, str]", minutes: float | None
) -> None:
    """Each trial with its size, cost and state, and the sum of those that are left.

    What a trial can do in a number of minutes is not known before it begins.
    """
    from groundup.cli.terminal import print_table
    from groundup.planner.flops import training_flops_per_token
    from groundup.planner.parameters import count_parameters

    def flops(trial: "Trial", num_steps: int) -> int:
        config = trial.config
        return num_steps * config.tokens_per_step * training_flops_per_token(config.model)

    rows = []
    for trial in outlook.trials:
        num_steps, tokens_per_step = trial.config.num_steps, trial.config.tokens_per_step
        cells = [f"{minutes or 0:g}"]
        if minutes is None:
            cells = [f"{num_steps:,}", f"{num_steps * tokens_per_step:,}"]
            cells.append(f"{flops(trial, num_steps):.3g}")
        num_parameters = sum(count_parameters(trial.config.model).values())
        rows.append([trial.name, f"{num_parameters:,}", *cells, states[trial.name]])
    num_left, num_trials = len(outlook.left), len(outlook.trials)
    told = f"{num_left} of {num_trials} trials are left"
    told = told if num_left < num_trials else f"{num_left} trials"
    headers = ["minutes"]
    last = [f"{(minutes or 0) * num_left:g}"]
    if minutes is None:
        headers = ["steps", "tokens", "FLOPs"]
        last = ["", "", f"{sum(flops(one, one.config.num_steps) for one in outlook.left):.3g}"]
    rows.append([told, "", *last, ""])
    print_table(title, ("trial", "parameters", *headers, "state"), rows)


def print_study(study: "Study", folder: Path) -> None:
    """What an ablation or a ladder of sizes came to, in the words of its report."""
    from groundup.cli.report import print_document_table, print_lines
    from groundup.experiments.report.comparison import make_report
    from groundup.experiments.report.document import Table, Text

    for block in study.section.blocks:
        if isinstance(block, Table):
            print_document_table(block)
        elif isinstance(block, Text):
            print(block.text)
    if study.verdict:
        print(study.verdict)
    print_lines(make_report([folder]).warnings)
    print(f"the runs are in {folder / 'runs'}; groundup report {folder} shows them")


def _print_search(spec: "SweepConfig", outlook: "Outlook", states: "Mapping[str, str]") -> None:
    """How far a search is; a trial of it is known only once it is proposed."""
    length = "" if spec.minutes is None else f", {spec.minutes:g} minutes for each trial"
    print(f"{spec.name}: {spec.num_trials} points are proposed while the sweep runs{length}")
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
    """The results of the report about the sweep, what came out of it, and where everything lies."""
    from groundup.cli.report import print_document_table, print_lines
    from groundup.experiments.report.comparison import make_report, results_table

    report = make_report([folder])
    print_document_table(results_table(report))
    print_lines((*report.verdicts, *report.warnings))
    print(f"the runs are in {folder / 'runs'}; groundup report {folder} shows them")
