"""Groups of runs that differ only by seed: their labels, metrics and ranks.

Groups are ranked among those with the same data: losses on different text do not compare.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from groundup.experiments.run_result import RunResult
from groundup.experiments.statistics import Interval, confidence_interval
from groundup.runs.metrics import Metrics

Measure = Literal["validation_loss", "loss"]

# Settings that do not affect what a run learns.
_NOT_DECISIVE = (
    *("name", "seed", "runs_folder", "micro_batch_size"),
    *("data.verify", "data.shards", "data.tokenizer"),
)
# Paths are ignored, because copies of the same data may be in two folders, unless the data differ.
_PATHS_OF_DATA = ("data.shards", "data.tokenizer")
_NOT_DECISIVE_SECTIONS = ("logging.", "checkpoints.", "samples.")
_LONGEST_LABEL = 48


@dataclass(frozen=True)
class Group:
    """Runs with the same settings and data, and their results."""

    label: str
    runs: tuple[RunResult, ...]
    differences: Mapping[str, Any]
    """This group's values of the settings in which groups differ, by dotted name."""
    measure: Measure
    mark: str = ""
    """winner, or tied for groups that do not clearly differ from it."""

    @property
    def data_id(self) -> str | None:
        return self.runs[0].data_id

    @property
    def is_complete(self) -> bool:
        return all(run.outcome.state == "finished" for run in self.runs)

    @property
    def best(self) -> Interval | None:
        """The measure for ranking: each run's lowest validation loss, or the mean of the last
        training losses."""
        if self.measure == "validation_loss":
            return self.at_best("validation_loss")
        return self._over_seeds(lambda metrics: metrics.at_end("loss"))

    def at_best(self, name: str) -> Interval | None:
        """A metric at the lowest validation loss."""
        return self._over_seeds(lambda metrics: metrics.at_lowest(name, by="validation_loss"))

    @property
    def counted(self) -> list[RunResult]:
        """The finished runs; if there are none, those that did not diverge."""
        finished = [run for run in self.runs if run.outcome.state == "finished"]
        return finished or [run for run in self.runs if run.outcome.state != "diverged"]

    def _over_seeds(self, read: Callable[[Metrics], float | None]) -> Interval | None:
        """Runs with the same seed count as one measurement."""
        by_seed: dict[int | None, list[float]] = {}
        for run in self.counted:
            if (value := read(run.metrics)) is not None:
                by_seed.setdefault(run.seed, []).append(value)
        return confidence_interval([sum(same) / len(same) for same in by_seed.values()])


def group_runs(runs: Sequence[RunResult]) -> list[Group]:
    """The groups of each data set from best to worst, those without metrics last; by validation
    loss if any run has one."""
    is_measured = any(run.metrics.indices("validation_loss") for run in runs)
    measure: Measure = "validation_loss" if is_measured else "loss"
    members: dict[str, list[RunResult]] = {}
    for run in runs:
        members.setdefault(_key(run), []).append(run)
    names = differing_settings([batch[0] for batch in members.values()])
    groups = []
    for batch in members.values():
        differences = {name: batch[0].settings.get(name) for name in names}
        groups.append(Group(_label(batch, differences), tuple(batch), differences, measure))
    counts = Counter(group.label for group in groups)
    groups = [
        group if counts[group.label] == 1 else replace(group, label=group.runs[0].name)
        for group in groups
    ]

    def rank(group: Group) -> tuple[bool, bool, float]:
        best = group.best
        return best is None, not group.is_complete, 0.0 if best is None else best.mean

    ranked = sorted(groups, key=rank)
    order = list(dict.fromkeys(group.data_id for group in ranked))
    return _with_marks(sorted(ranked, key=lambda group: order.index(group.data_id)))


def differing_settings(runs: Sequence[RunResult]) -> list[str]:
    """Names of the relevant settings in which runs differ."""
    known = [run for run in runs if run.settings]
    paths = _PATHS_OF_DATA if len({run.data_id for run in known}) > 1 else ()
    names = dict.fromkeys(
        name for run in known for name in run.settings if _is_decisive(name) or name in paths
    )
    return [name for name in names if len({_spell(run.settings.get(name)) for run in known}) > 1]


def show_setting(value: Any) -> str:
    """Format a setting's value."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def _key(run: RunResult) -> str:
    if not run.settings:
        # A run without settings forms its own group.
        return f"run {run.path}"
    decisive = {name: value for name, value in run.settings.items() if _is_decisive(name)}
    path = None if run.data_id else str(run.settings.get("data.shards"))
    return _spell([run.data_id, path, decisive])


def _is_decisive(name: str) -> bool:
    return name not in _NOT_DECISIVE and not name.startswith(_NOT_DECISIVE_SECTIONS)


def _spell(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _label(runs: Sequence[RunResult], differences: Mapping[str, Any]) -> str:
    """A sweep's point, the settings of repeated runs, or the name of a single run."""
    point = runs[0].point
    if point is not None and all(run.point == point for run in runs):
        return point.replace("+", ", ").replace("_", " ").replace("=", " ")
    label = ", ".join(
        f"{name.rpartition('.')[2].replace('_', ' ')} {show_setting(value)}"
        for name, value in differences.items()
    )
    return label if len(runs) > 1 and 0 < len(label) <= _LONGEST_LABEL else runs[0].name


def _with_marks(groups: list[Group]) -> list[Group]:
    """Mark the best of several groups with the same data, and those not clearly different."""
    marked: list[Group] = []
    winners: dict[str | None, Interval] = {}
    rivals = Counter(group.data_id for group in groups if group.best is not None)
    for group in groups:
        mark, best = "", group.best
        if best is not None and group.is_complete and rivals[group.data_id] > 1:
            if group.data_id not in winners:
                mark = "winner"
            elif not best.is_apart_from(winners[group.data_id]):
                mark = "tied"
            winners.setdefault(group.data_id, best)
        marked.append(replace(group, mark=mark))
    return marked
