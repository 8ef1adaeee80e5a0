"""Compare runs: their groups and warnings."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from groundup.experiments.groups import Group, group_runs
from groundup.experiments.report.tables import Table, list_names, results_table
from groundup.experiments.run_finding import Found, find_runs
from groundup.experiments.run_result import RunResult


@dataclass
class Comparison:
    """The contents of a report."""

    title: str
    why: str
    runs: list[RunResult]
    groups: list[Group]
    warnings: list[str] = field(default_factory=list)
    """Reasons why results are incomplete or cannot be compared."""

    @property
    def data_names(self) -> dict[str | None, str]:
        """data 1, data 2, … by content id, in the order of the groups."""
        ids = dict.fromkeys(group.data_id for group in self.groups)
        return {one: f"data {number}" for number, one in enumerate(ids, start=1)}

    @property
    def results(self) -> Table:
        is_measured = any(group.measure == "validation_loss" for group in self.groups)
        measure = "validation loss" if is_measured else "training loss"
        return results_table(self.groups, measure, self.data_names)


def compare(paths: Sequence[Path], *, title: str | None = None) -> Comparison:
    """Read the runs below `paths` and compare them. title: default: the names of the sweeps."""
    found = find_runs(paths)
    comparison = Comparison(
        title=title or _title(found),
        why=" ".join(found.reasons),
        runs=found.runs,
        groups=group_runs(found.runs),
    )
    comparison.warnings = [*_warnings(comparison), *found.notes]
    return comparison


def run_notes(runs: Sequence[RunResult]) -> list[str]:
    """Problems with run folders, one sentence each with the names of the runs."""
    names: dict[str, list[str]] = {}
    for run in runs:
        for note in run.notes:
            names.setdefault(note, []).append(run.name)
    return [f"{list_names(these)}: {note}." for note, these in names.items()]


def _title(found: Found) -> str:
    if found.names:
        title = " and ".join(found.names).replace("_", " ")
        return title[0].upper() + title[1:]
    return list_names([run.name for run in found.runs])


def _warnings(comparison: Comparison) -> list[str]:
    names = comparison.data_names
    if len(names) <= 1:
        return []
    labels: dict[str, list[str]] = {}
    for group in comparison.groups:
        labels.setdefault(names[group.data_id], []).append(group.label)
    shown = "; ".join(f"{data}: {list_names(these)}" for data, these in labels.items())
    return [
        f"These runs were trained on different data: do not compare losses across data sets "
        f"({shown})."
    ]
