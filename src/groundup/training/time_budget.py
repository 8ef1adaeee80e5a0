"""How many steps fit into a given time: arithmetic on what was measured, no clock and no torch.

What the parts of a run cost on this machine is measured by `cost_probe`.
"""

import bisect
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from groundup.errors import ConfigError
from groundup.runs.config import RunConfig
from groundup.training.step_counts import scaled, with_num_steps
from groundup.training.timetable import times_due, times_either_due


@dataclass(frozen=True)
class TimeBudget:
    """The time that a run may take."""

    seconds: float
    began: float
    """When it began to run, by time.monotonic."""
    chosen: Collection[str] = ()
    """Settings counted in steps that stay as they are; all others keep their share of the run."""
    max_steps: int | None = None
    """The run has no more steps than these, however many fit."""


@dataclass(frozen=True)
class Repeated:
    """Something that is done every so many steps, and after the last one in any case."""

    seconds: float
    every_steps: int
    """Of the run as its settings have it; 0 for the last step alone."""
    keeps_share: bool = True
    """Does every_steps change with the length of the run?"""


@dataclass(frozen=True)
class Costs:
    """What a run whose settings say `base_num_steps` takes, part by part."""

    base_num_steps: int
    step_seconds: float
    starting_seconds: float = 0.0
    """From the measuring to the first step, and what is slower the first time than later."""
    repeated: Mapping[str, Repeated] = field(default_factory=dict)
    num_timed: int = 0
    """Steps that step_seconds is the mean of."""
    measures_checkpoints: bool = False
    """Is there an evaluation with every checkpoint, besides those that are due by themselves?"""
    reserve: float = 0.02
    """The share of a budget to keep free, because no two stretches of a run are equally fast."""

    def num_times(self, num_steps: int) -> dict[str, int]:
        """How often each repeated thing is done in a run of that length."""
        intervals = {
            name: scaled(work.every_steps, num_steps, self.base_num_steps)
            if work.keeps_share
            else work.every_steps
            for name, work in self.repeated.items()
        }
        times = {name: times_due(num_steps, every) for name, every in intervals.items()}
        if self._evaluates_checkpoints:
            times["evaluation"] = times_either_due(
                num_steps, intervals["evaluation"], intervals["checkpoint"]
            )
        return times

    @property
    def _evaluates_checkpoints(self) -> bool:
        return self.measures_checkpoints and {"evaluation", "checkpoint"} <= self.repeated.keys()

    def seconds(self, num_steps: int) -> float:
        """The time of a run of that length."""
        times = self.num_times(num_steps)
        repeated = sum(work.seconds * times[name] for name, work in self.repeated.items())
        return self.starting_seconds + num_steps * self.step_seconds + repeated

    @property
    def needed_seconds(self) -> float:
        """One step, and everything else as often as the settings mean it to be done."""
        total = self.starting_seconds + self.step_seconds
        times = self.num_meant()
        return total + sum(work.seconds * times[name] for name, work in self.repeated.items())

    def num_meant(self) -> dict[str, int]:
        """How often the settings mean each to be done, whatever the length of the run."""
        times = {
            name: times_due(self.base_num_steps, work.every_steps) if work.keeps_share else 1
            for name, work in self.repeated.items()
        }
        if self._evaluates_checkpoints:
            works = self.repeated["evaluation"], self.repeated["checkpoint"]
            if all(work.keeps_share for work in works):
                intervals = [work.every_steps for work in works]
                times["evaluation"] = times_either_due(self.base_num_steps, *intervals)
            else:
                times["evaluation"] = max(times["evaluation"], times["checkpoint"])
        return times

    def least_seconds(self, num_steps: int) -> float:
        """Less than `seconds`, or as much, and never falling as the run gets longer.

        `seconds` itself may fall: with intervals in whole steps, a run of 14 steps may have 14
        evaluations and one of 15 steps 8.
        """
        total = self.starting_seconds + num_steps * self.step_seconds
        times = {name: self._least_times(work, num_steps) for name, work in self.repeated.items()}
        if self._evaluates_checkpoints:
            times["evaluation"] = max(times["evaluation"], times["checkpoint"])
        return total + sum(work.seconds * times[name] for name, work in self.repeated.items())

    def _least_times(self, work: Repeated, num_steps: int) -> float:
        longest = float(work.every_steps)
        if work.keeps_share:
            longest = max(1.0, longest * num_steps / self.base_num_steps + 0.5)
        return num_steps / longest if work.every_steps else 1.0


def num_steps_within(costs: Costs, seconds: float, max_steps: int | None = None) -> int:
    """The most steps, up to `max_steps`, that take no longer than `seconds`; 0 if none fits."""
    lengths = range(1, max(1, int(seconds / costs.step_seconds)) + 2)
    most = bisect.bisect_right(lengths, seconds, key=costs.least_seconds) + 1
    if max_steps is not None:
        most = min(most, max_steps)
    return next((n for n in range(most, 0, -1) if costs.seconds(n) <= seconds), 0)


def settle_num_steps(
    config: RunConfig, costs: Costs, budget: TimeBudget, passed_seconds: float
) -> RunConfig:
    """The run with as many steps as fit into what is left of the budget; an error if none does."""
    left_seconds = budget.seconds * (1.0 - costs.reserve) - passed_seconds
    if costs.needed_seconds > left_seconds:
        raise ConfigError(_describe_shortage(costs, budget, passed_seconds))
    num_steps = num_steps_within(costs, left_seconds, budget.max_steps)
    return with_num_steps(config, num_steps, budget.chosen)


def describe_settlement(
    costs: Costs, budget: TimeBudget, passed_seconds: float, num_steps: int
) -> str:
    """One line: what was measured, and the number of steps that follows from it."""
    times = costs.num_times(num_steps)
    parts = [f"{num_steps:,} steps of {_show(costs.step_seconds)} (mean of {costs.num_timed})"]
    parts += [
        f"{times[name]} × {name} of {_show(work.seconds)}" for name, work in costs.repeated.items()
    ]
    parts.append(f"{_show(passed_seconds)} passed before")
    parts.append(f"{_show(costs.starting_seconds)} to start")
    parts.append(f"{_show(costs.reserve * budget.seconds)} in reserve")
    limits = _minutes(budget)
    if budget.max_steps is not None:
        limits += f", at most {budget.max_steps:,} step{'' if budget.max_steps == 1 else 's'}"
    return f"{limits}: {', '.join(parts)}"


def _describe_shortage(costs: Costs, budget: TimeBudget, passed_seconds: float) -> str:
    parts = [f"{_show(passed_seconds)} have passed"]
    parts.append(f"to start takes {_show(costs.starting_seconds)}")
    parts.append(f"one step {_show(costs.step_seconds)}")
    for name, times in costs.num_meant().items():
        parts.append(f"{times} × {name} {_show(times * costs.repeated[name].seconds)}")
    needed_seconds = (passed_seconds + costs.needed_seconds) / (1.0 - costs.reserve)
    return (
        f"{_minutes(budget)} cannot hold this run: {', '.join(parts)}. Give it "
        f"more than {needed_seconds / 60:.2g} minutes, evaluate on fewer windows "
        f"(--evaluation.num-windows) or less often, or make the model or the batch smaller"
    )


def _minutes(budget: TimeBudget) -> str:
    minutes = budget.seconds / 60
    return "1 minute" if minutes == 1 else f"{minutes:g} minutes"


def _show(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.1f} s"
