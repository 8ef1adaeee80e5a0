"""Runs compared: what was run and why, what came of it, and what a reader must know first.

The sections with its tables and charts are `sections`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from groundup.experiments.report.charts import Chart
from groundup.experiments.report.setting_chart import setting_chart
from groundup.experiments.report.studies import Study, read_studies
from groundup.experiments.report.text import show_interval, show_loss
from groundup.experiments.results.groups import Group, Measure, choose_measure, group_runs
from groundup.experiments.results.run_finding import find_runs
from groundup.experiments.results.run_result import RunResult

_MOST_NAMES = 6
# A last loss this much above the best one is more than the jitter of a measurement.
_RISEN = 1.01
MEASURE_NAMES = {"validation_loss": "validation loss", "loss": "training loss"}


@dataclass(frozen=True)
class Report:
    """Everything that a page shows."""

    title: str
    why: str
    runs: tuple[RunResult, ...]
    groups: tuple[Group, ...]
    measure: Measure
    verdicts: tuple[str, ...]
    """What came out, a sentence or two for each data set."""
    warnings: tuple[str, ...]
    """What keeps results from being compared or complete."""
    finding: str = ""
    """What a person makes of it, in their own words."""
    studies: tuple[Study, ...] = ()
    """What ablations and ladders of sizes came to."""
    chart: Chart | None = None
    """The loss over the setting that was varied, where that is a number."""

    @property
    def measure_name(self) -> str:
        return MEASURE_NAMES[self.measure]

    @property
    def winners(self) -> list[Group]:
        return [group for group in self.groups if group.is_winner]

    @property
    def data_ids(self) -> list[str | None]:
        """The distinct data of the runs, in the order of the groups."""
        return list(dict.fromkeys(group.data_id for group in self.groups))

    @property
    def days(self) -> str:
        """When the runs began, from the first to the last; nothing if no run tells."""
        days = sorted({run.day for run in self.runs if run.day is not None})
        return " to ".join(dict.fromkeys((days[0], days[-1]))) if days else ""

    def data_name(self, data_id: str | None) -> str:
        """data 1, data 2, …: content ids are too long to be read."""
        if data_id is None:
            return "unknown data"
        known = [one for one in self.data_ids if one is not None]
        return f"data {known.index(data_id) + 1}"


def make_report(
    paths: Sequence[Path],
    *,
    title: str | None = None,
    why: str = "",
    finding: str | None = None,
) -> Report:
    """Read the runs below `paths` and compare them.

    Title, reason and finding are those of the sweeps where they are not given.
    """
    found = find_runs(paths)
    measure = choose_measure(found.runs)
    groups = tuple(group_runs(found.runs, measure))
    studies, study_notes = read_studies(found.sweeps)
    has_ladder = any(study.has_chart for study in studies)
    varied = found.varied if found.sweeps else None
    report = Report(
        title=title or _title(found.names, found.runs),
        why=why or " ".join(found.reasons),
        runs=tuple(found.runs),
        groups=groups,
        measure=measure,
        verdicts=(),
        warnings=(),
        finding="\n\n".join(found.findings) if finding is None else finding.strip(),
        studies=tuple(studies),
        chart=None if has_ladder else setting_chart(groups, varied, MEASURE_NAMES[measure]),
    )
    is_told = len(found.sweeps) == 1 and any(study.is_ranking for study in studies)
    verdicts = [] if is_told else _verdicts(report)
    verdicts += [study.verdict for study in studies if study.verdict]
    warnings = (*_warnings(report), *found.notes, *study_notes)
    return replace(report, verdicts=tuple(verdicts), warnings=warnings)


def list_names(names: Sequence[str]) -> str:
    """The names, or the first of them and how many more there are."""
    comma = "; " if any("," in name for name in names) else ", "
    shown = comma.join(names[:_MOST_NAMES])
    return shown if len(names) <= _MOST_NAMES else f"{shown} and {len(names) - _MOST_NAMES} more"


def run_notes(runs: Sequence[RunResult]) -> list[str]:
    """What was odd about folders, a sentence each with the runs it is true of."""
    names: dict[str, list[str]] = {}
    for run in runs:
        for note in run.notes:
            names.setdefault(note, []).append(run.name)
    return [f"{list_names(these)}: {note}." for note, these in names.items()]


def _title(sweeps: Sequence[str], runs: Sequence[RunResult]) -> str:
    if sweeps:
        title = " and ".join(sweeps).replace("_", " ")
        return title[0].upper() + title[1:]
    if len(runs) <= 3:
        return " and ".join(run.name for run in runs)
    return f"{len(runs)} runs compared"


def _verdicts(report: Report) -> list[str]:
    verdicts = []
    for winner in report.winners:
        rivals = [group for group in report.groups if group.data_id == winner.data_id]
        verdicts.append(_verdict(report, winner, rivals))
    if not verdicts:
        leading = report.groups[0] if report.groups else None
        if leading is None or leading.best is None:
            verdicts.append("No run has a loss to compare yet.")
        elif len(report.groups) == 1:
            num_seeds = leading.best.num_values
            mean = f", the mean of {num_seeds} seeds" if num_seeds > 1 else ""
            verdicts.append(
                f"{leading.label} reached a {report.measure_name} of "
                f"{show_interval(leading.best)}{mean}."
            )
        elif [group for group in report.groups if group.is_complete] == [leading]:
            verdicts.append(
                f"{leading.label} alone has finished, with a {report.measure_name} of "
                f"{show_interval(leading.best)}."
            )
        else:
            verdicts.append(
                "No winner is named: no two finished groups learned from the same data."
            )
    return verdicts


def _verdict(report: Report, winner: Group, rivals: Sequence[Group]) -> str:
    assert winner.best is not None
    where = f" on {report.data_name(winner.data_id)}" if len(report.data_ids) > 1 else ""
    waiting = {"running", "unfinished", "empty"}
    is_open = any(run.outcome.state in waiting for group in rivals for run in group.runs)
    so_far = " of what has finished" if is_open else ""
    text = (
        f"{winner.label} has the lowest {report.measure_name}{so_far}{where}: "
        f"{show_interval(winner.best)}"
    )
    second = next(
        (group for group in rivals if group is not winner and group.best and group.is_complete),
        None,
    )
    if second is None or second.best is None:
        return f"{text}; no other group on the same data is finished."
    lead = show_loss(second.best.mean - winner.best.mean)
    is_level = float(lead) == 0
    text += f", level with {second.label}." if is_level else f", {lead} below {second.label}."
    if winner.best.half_width is None or second.best.half_width is None:
        return f"{text} Without repeated seeds on both sides, a small lead may be chance."
    if "tied" in second.marks:
        return f"{text} Their 95% intervals overlap, so the lead may be chance."
    return f"{text} Their 95% intervals do not overlap."


def _warnings(report: Report) -> list[str]:
    warnings = []
    if len(report.data_ids) > 1:
        told = "; ".join(
            f"{report.data_name(data_id)}: {_names_of(report, data_id)}"
            for data_id in report.data_ids
        )
        warnings.append(
            f"These runs did not all learn from the same data, so their losses do not compare "
            f"across it ({told})."
        )
    unknown = [run.name for run in report.runs if run.data_id is None and run.metrics.num_lines]
    if unknown and len(report.runs) > 1:
        warnings.append(
            f"Whether these compare with anything is not known, because they do not say which "
            f"data they learned from: {list_names(unknown)}."
        )
    if len({run.tokenizer_id for run in report.runs if run.tokenizer_id}) > 1:
        warnings.append(
            "Their tokenizers differ too: a loss a token is not the same thing for each. "
            "Bits per byte on the same text would compare."
        )
    for group in report.groups:
        if group.repeated_seeds:
            warnings.append(
                f"{group.label} holds several runs of the same seed "
                f"({', '.join(map(str, group.repeated_seeds))}); each seed counts once."
            )
    for state, told in (
        ("diverged", "Diverged, so left out of means and of the ranking"),
        ("running", "Still training, so shown as of this moment"),
        ("unfinished", "Stopped before the last step, so not ranked as winner"),
        ("pruned", "Stopped by the sweep as hopeless"),
        ("failed", "Failed"),
        ("empty", "Without metrics yet"),
    ):
        names = _names_in(report, state)
        if names:
            warnings.append(f"{told}: {list_names(names)}.")
    if report.measure == "validation_loss" and (risen := _risen(report)):
        warnings.append(
            f"The validation loss rose again after its best, by which groups are ranked, while the "
            f"training loss fell: {list_names(risen)}."
        )
    return warnings


def _risen(report: Report) -> list[str]:
    """Groups that had learned by heart at their end, with their best and their last loss."""
    told = []
    for group in report.groups:
        best, last = group.best, group.last("validation_loss")
        if best is not None and last is not None and last.mean > _RISEN * best.mean:
            told.append(f"{group.label} ({show_loss(best.mean)}, then {show_loss(last.mean)})")
    return told


def _names_in(report: Report, state: str) -> list[str]:
    """Groups that are in a state as a whole by their label, other runs by their name."""
    names = []
    for group in report.groups:
        runs = [run.name for run in group.runs if run.outcome.state == state]
        names += [group.label] if runs and len(runs) == len(group.runs) else runs
    return names


def _names_of(report: Report, data_id: str | None) -> str:
    return list_names([group.label for group in report.groups if group.data_id == data_id])
