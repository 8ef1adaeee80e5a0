"""Runs compared: what was run and why, groups, studies, and what a reader must know first."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from groundup.config import load_settings
from groundup.errors import GroundupError
from groundup.experiments.ablation import make_rows
from groundup.experiments.groups import Group, Measure, choose_measure, group_runs
from groundup.experiments.isoflop import analyse
from groundup.experiments.report.charts import Figure, isoflop_chart, setting_chart
from groundup.experiments.report.tables import (
    Table,
    ablation_table,
    isoflop_tables,
    list_names,
    results_table,
    show_loss,
)
from groundup.experiments.run_finding import Found, find_runs
from groundup.experiments.run_result import RunResult
from groundup.experiments.spec import SweepConfig
from groundup.experiments.sweep_folder import SweepFolder

# A last loss this much above the best one is more than the jitter of a measurement.
_RISEN = 1.01
MEASURE_NAMES = {"validation_loss": "validation loss", "loss": "training loss"}
_STATE_WARNINGS = {
    "diverged": "Diverged, so left out of means and of the ranking",
    "running": "Still training, so shown as of this moment",
    "unfinished": "Stopped before the last step, so not ranked as best",
    "pruned": "Stopped by the sweep as hopeless",
    "failed": "Failed",
    "empty": "Without metrics yet",
}


@dataclass
class Study:
    """What an ablation or an IsoFLOP sweep came to."""

    title: str
    tables: list[Table]
    figure: Figure | None = None


@dataclass
class Comparison:
    """Everything that a page shows."""

    title: str
    why: str
    runs: list[RunResult]
    groups: list[Group]
    measure: Measure
    finding: str
    """What a person makes of it, in their own words."""
    studies: list[Study]
    figure: Figure | None = None
    """The loss over the setting that was varied, where that is a number."""
    warnings: list[str] = field(default_factory=list)
    """What keeps results from being compared or complete."""

    @property
    def measure_name(self) -> str:
        return MEASURE_NAMES[self.measure]

    @property
    def data_names(self) -> dict[str | None, str]:
        """data 1, data 2, … by content id, in the order of the groups."""
        ids = list(dict.fromkeys(group.data_id for group in self.groups))
        known = [one for one in ids if one is not None]
        return {
            one: "unknown data" if one is None else f"data {known.index(one) + 1}" for one in ids
        }

    @property
    def results(self) -> Table:
        return results_table(self.groups, self.measure_name, self.data_names)


def compare(
    paths: Sequence[Path],
    *,
    title: str | None = None,
    why: str = "",
    finding: str | None = None,
) -> Comparison:
    """Read the runs below `paths` and compare them.

    Title, reason and finding are those of the sweeps where they are not given.
    """
    found = find_runs(paths)
    measure = choose_measure(found.runs)
    groups = group_runs(found.runs, measure)
    comparison = Comparison(
        title=title or _title(found),
        why=why or " ".join(found.reasons),
        runs=found.runs,
        groups=groups,
        measure=measure,
        finding="\n\n".join(found.findings) if finding is None else finding.strip(),
        studies=[study for path in found.sweeps if (study := read_study(path, found)) is not None],
    )
    varied = found.varied if found.sweeps else None
    comparison.figure = setting_chart(groups, varied, comparison.measure_name) if groups else None
    comparison.warnings = [*_warnings(comparison), *found.notes]
    return comparison


def read_study(path: Path, found: Found | None = None) -> Study | None:
    """The study of a sweep's folder by its `kind`, recomputed from its trials; None for others."""
    folder = SweepFolder(path)
    try:
        spec = load_settings(SweepConfig, folder.spec_file)
        records = list(folder.records().values())
        if spec.kind == "ablation":
            return Study("What each part is worth", [ablation_table(make_rows(spec, records))])
        if spec.kind == "isoflop":
            result = analyse(spec, records)
            return Study("Best size for each budget", isoflop_tables(result), isoflop_chart(result))
    except (GroundupError, OSError) as error:
        if found is not None and folder.spec_file.exists():
            found.notes.append(f"{path.name}: {error}")
    return None


def run_notes(runs: Sequence[RunResult]) -> list[str]:
    """What was odd about folders, a sentence each with the runs it is true of."""
    names: dict[str, list[str]] = {}
    for run in runs:
        for note in run.notes:
            names.setdefault(note, []).append(run.name)
    return [f"{list_names(these)}: {note}." for note, these in names.items()]


def _title(found: Found) -> str:
    if found.names:
        title = " and ".join(found.names).replace("_", " ")
        return title[0].upper() + title[1:]
    if len(found.runs) <= 3:
        return " and ".join(run.name for run in found.runs)
    return f"{len(found.runs)} runs compared"


def _warnings(comparison: Comparison) -> list[str]:
    warnings = []
    names, runs, groups = comparison.data_names, comparison.runs, comparison.groups
    if len(names) > 1:
        labels: dict[str, list[str]] = {}
        for group in groups:
            labels.setdefault(names[group.data_id], []).append(group.label)
        told = "; ".join(f"{data}: {list_names(these)}" for data, these in labels.items())
        warnings.append(
            f"These runs did not all learn from the same data, so their losses do not compare "
            f"across it ({told})."
        )
    unknown = [run.name for run in runs if run.data_id is None and run.metrics.num_lines]
    if unknown and len(runs) > 1:
        warnings.append(f"Which data these learned from is unknown: {list_names(unknown)}.")
    if len({run.tokenizer_id for run in runs if run.tokenizer_id}) > 1:
        warnings.append("Their tokenizers differ: compare bits per byte, not losses per token.")
    for group in groups:
        if group.repeated_seeds:
            warnings.append(
                f"{group.label} holds several runs of the same seed "
                f"({', '.join(map(str, group.repeated_seeds))}); each seed counts once."
            )
    for state, told in _STATE_WARNINGS.items():
        these = []
        for group in groups:
            # A group that is in a state as a whole by its label, other runs by their name.
            inside = [run.name for run in group.runs if run.outcome.state == state]
            these += [group.label] if inside and len(inside) == len(group.runs) else inside
        if these:
            warnings.append(f"{told}: {list_names(these)}.")
    risen = []
    for group in groups:
        best, last = group.best, group.last("validation_loss")
        if best is not None and last is not None and last.mean > _RISEN * best.mean:
            risen.append(f"{group.label} ({show_loss(best.mean)}, then {show_loss(last.mean)})")
    if risen and comparison.measure == "validation_loss":
        warnings.append(f"The validation loss rose again after its best: {list_names(risen)}.")
    return warnings
