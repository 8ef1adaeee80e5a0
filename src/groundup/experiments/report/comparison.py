"""Runs compared: what was run and why, what came of it, and what a reader must know first.

The other sections with their tables and charts are `sections`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from groundup.experiments.report.charts import Chart
from groundup.experiments.report.curves import assign_styles
from groundup.experiments.report.document import Cell, Mark, Row, Table
from groundup.experiments.report.setting_chart import setting_chart
from groundup.experiments.report.studies import Study, read_studies
from groundup.experiments.report.text import show_count, show_interval, show_loss, shown
from groundup.experiments.results.groups import Group, Measure, choose_measure, group_runs
from groundup.experiments.results.run_finding import find_runs
from groundup.experiments.results.run_result import RunResult
from groundup.experiments.results.statistics import Interval
from groundup.runtime import format_duration

_MOST_NAMES = 6
# A last loss this much above the best one is more than the jitter of a measurement.
_RISEN = 1.01
STATES = {
    "finished": ("✓", "finished"),
    "running": ("◔", "still training"),
    "unfinished": ("◑", "unfinished"),
    "diverged": ("✕", "diverged"),
    "pruned": ("✂", "pruned"),
    "failed": ("!", "failed"),
    "empty": ("○", "no metrics yet"),
}
MEASURE_NAMES = {"validation_loss": "validation loss", "loss": "training loss"}


@dataclass
class Report:
    """Everything that a page shows."""

    title: str
    why: str
    runs: list[RunResult]
    groups: list[Group]
    measure: Measure
    finding: str
    """What a person makes of it, in their own words."""
    studies: list[Study]
    """What ablations and ladders of sizes came to."""
    chart: Chart | None = None
    """The loss over the setting that was varied, where that is a number."""
    verdicts: list[str] = field(default_factory=list)
    """What came out, a sentence or two for each data set."""
    warnings: list[str] = field(default_factory=list)
    """What keeps results from being compared or complete."""

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
        known = [one for one in self.data_ids if one is not None]
        return "unknown data" if data_id is None else f"data {known.index(data_id) + 1}"


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
    groups = group_runs(found.runs, measure)
    studies, study_notes = read_studies(found.sweeps)
    report = Report(
        title=title or _title(found.names, found.runs),
        why=why or " ".join(found.reasons),
        runs=found.runs,
        groups=groups,
        measure=measure,
        finding="\n\n".join(found.findings) if finding is None else finding.strip(),
        studies=studies,
    )
    if not any(study.has_chart for study in studies):
        varied = found.varied if found.sweeps else None
        report.chart = setting_chart(groups, varied, report.measure_name)
    if len(found.sweeps) != 1 or not any(study.is_ranking for study in studies):
        report.verdicts = _verdicts(report)
    report.verdicts += [study.verdict for study in studies if study.verdict]
    report.warnings = [*_warnings(report), *found.notes, *study_notes]
    return report


def results_table(report: Report) -> Table:
    """The groups from best to worst."""
    name, styles = report.measure_name, assign_styles(report.groups)
    rows: list[Row] = []
    for group in report.groups:
        seeds = ", ".join(map(str, group.seeds))
        note = f"{len(group.seeds)} seeds: {seeds}" if len(group.seeds) > 1 else ""
        rows.append(
            {
                "Runs": Cell(group.label, note, _marks(report, group), style=styles[group.label]),
                f"Best {name} ± 95%": Cell(show_interval(group.best), is_strong=group.is_winner),
                f"Last {name}": show_interval(group.last(report.measure)),
                "Bits per byte at the best": show_interval(group.at_best("bits_per_byte")),
                "Training loss": show_interval(group.last("loss")),
                "Tokens": shown(show_count, _mean(group.last("tokens"))),
                "Wall clock": shown(format_duration, _mean(group.last("wall_seconds"))),
            }
        )
    return Table.of(f"Results, best {name} first", rows, "results")


def _marks(report: Report, group: Group) -> tuple[Mark, ...]:
    marks = [Mark("★", "best", "winner")] if group.is_winner else []
    if "tied" in group.marks:
        marks.append(Mark("≈", "not told apart from the best", "tied"))
    for state, (sign, word) in STATES.items():
        count = num_in(group.runs, state)
        if count and state != "finished":
            of_all = f", {count} of {len(group.runs)}" if len(group.runs) > 1 else ""
            marks.append(Mark(sign, word + of_all, state))
    if len(report.data_ids) > 1:
        marks.append(Mark("▤", report.data_name(group.data_id), "data"))
    return tuple(marks)


def num_in(runs: Sequence[RunResult], state: str) -> int:
    """How many of the runs are in a state."""
    return sum(run.outcome.state == state for run in runs)


def _mean(interval: Interval | None) -> float | None:
    return None if interval is None else interval.mean


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
    if report.winners:
        return [_verdict(report, winner) for winner in report.winners]
    leading = report.groups[0] if report.groups else None
    if leading is None or leading.best is None:
        return ["No run has a loss to compare yet."]
    told = f"a {report.measure_name} of {show_interval(leading.best)}"
    if len(report.groups) == 1:
        num_seeds = leading.best.num_values
        mean = f", the mean of {num_seeds} seeds" if num_seeds > 1 else ""
        return [f"{leading.label} reached {told}{mean}."]
    if [group for group in report.groups if group.is_complete] == [leading]:
        return [f"{leading.label} alone has finished, with {told}."]
    return ["No winner is named: no two finished groups learned from the same data."]


def _verdict(report: Report, winner: Group) -> str:
    assert winner.best is not None
    rivals = [group for group in report.groups if group.data_id == winner.data_id]
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
        labels: dict[str, list[str]] = {}
        for group in report.groups:
            labels.setdefault(report.data_name(group.data_id), []).append(group.label)
        told = "; ".join(f"{data}: {list_names(these)}" for data, these in labels.items())
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
        names = []
        for group in report.groups:
            # A group that is in a state as a whole by its label, other runs by their name.
            runs = [run.name for run in group.runs if run.outcome.state == state]
            names += [group.label] if runs and len(runs) == len(group.runs) else runs
        if names:
            warnings.append(f"{told}: {list_names(names)}.")
    risen = []
    for group in report.groups:
        best, last = group.best, group.last("validation_loss")
        # It had learned by heart at its end.
        if best is not None and last is not None and last.mean > _RISEN * best.mean:
            risen.append(f"{group.label} ({show_loss(best.mean)}, then {show_loss(last.mean)})")
    if risen and report.measure == "validation_loss":
        warnings.append(
            f"The validation loss rose again after its best, by which groups are ranked, while the "
            f"training loss fell: {list_names(risen)}."
        )
    return warnings
