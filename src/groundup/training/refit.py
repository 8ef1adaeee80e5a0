"""A run with a time budget looks again while it trains: has it too many or too few steps?

The probe before a run may have met a machine that was busy with other things, or idle only then.
The loop stores a new length as settings of the run, so that a resume depends on no clock.
"""

import logging
import math
import statistics
import time
from dataclasses import replace
from pathlib import Path

from groundup.runs.config import RunConfig
from groundup.runtime import count_of
from groundup.training.budget import (
    Costs,
    TimeBudget,
    WriteSample,
    fit_into_budget,
    longest_run,
    num_warm_up_steps,
    show_seconds,
)
from groundup.training.metrics import Meter
from groundup.training.run_data import RunData

# Looks follow each other after this fraction of the steps left, or of the time left.
_STEPS_BETWEEN, _TIME_BETWEEN = 1 / 4, 1 / 8
# No look follows when less of the budget than this is left.
_LAST_LOOK = 0.05
# Steps are added where more of the budget than this would be unused, and dropped where what is to
# come takes longer than the time left by more than this.
_UNUSED, _MISSING = 0.1, 0.05

_log = logging.getLogger(__name__)


class Refit:
    """Chooses the length of a run, by a probe first and then by the run itself."""

    def __init__(self, folder: Path, budget: TimeBudget, write_sample: WriteSample | None) -> None:
        self._folder = folder
        self._budget = budget
        self._write_sample = write_sample
        self._base: RunConfig
        self._costs: Costs
        self._first_look: tuple[int, float] | None = None
        self._next_step: float
        self._next_time = math.inf

    def choose(self, config: RunConfig, data: RunData) -> RunConfig:
        """The run with the number of steps that fits by what a probe measures."""
        budget, write_sample = self._budget, self._write_sample
        run, self._costs = fit_into_budget(config, data, self._folder, budget, write_sample)
        self._base, self._next_step = config, num_warm_up_steps(config)
        return run

    def is_due(self, step: int) -> bool:
        """Is it time to look after this step?"""
        return step >= self._next_step or time.monotonic() >= self._next_time

    def look(self, config: RunConfig, step: int, meter: Meter) -> RunConfig | None:
        """The run with another length, where it clearly has the wrong one for its time.

        config, step: the run as it is, and how many of its steps are done.
        meter: knows what took time besides them.
        """
        now = time.monotonic()
        trained_seconds = now - sum(map(sum, meter.pauses.values()))
        run = None
        if self._first_look is None:
            # All that is slower the first time is over.
            self._first_look = step, trained_seconds
        else:
            # The mean of all steps since: that of the latest alone followed every moment in which
            # others were busy, and the schedule with it (tried on two shared cores, 2026-11).
            first_step, began = self._first_look
            num_timed = step - first_step
            mean = max((trained_seconds - began) / num_timed, 1e-9)
            repeated = {name: statistics.mean(each) for name, each in meter.pauses.items()}
            costs = replace(
                self._costs,
                step=mean,
                start=0.0,
                repeated={**self._costs.repeated, **repeated},
                num_timed=num_timed,
            )
            run = self._better_run(config, step, costs, now - self._budget.began)
        num_left = config.num_steps - step
        seconds_left = self._budget.began + self._budget.seconds - now
        is_last = seconds_left < _LAST_LOOK * self._budget.seconds
        self._next_step = math.inf if is_last else step + math.ceil(_STEPS_BETWEEN * num_left)
        self._next_time = math.inf if is_last else now + _TIME_BETWEEN * seconds_left
        return run

    def _better_run(
        self, config: RunConfig, step: int, costs: Costs, passed_seconds: float
    ) -> RunConfig | None:
        seconds_left = self._budget.seconds - passed_seconds
        unused = seconds_left - costs.of_run(config, step)
        if -_MISSING * seconds_left <= unused <= _UNUSED * self._budget.seconds:
            return None
        # A new length begins with a checkpoint.
        costs = replace(costs, start=costs.repeated["checkpoint"])
        run = longest_run(self._base, costs, self._budget, passed_seconds, step)
        if run.num_steps == config.num_steps:
            return None
        _log.info(
            "%s instead of %s: a step takes %s (mean of %d), and %s are left",
            count_of(run.num_steps, "step"),
            f"{config.num_steps:,}",
            show_seconds(costs.step),
            costs.num_timed,
            show_seconds(max(0.0, seconds_left)),
        )
        return run
