"""The progress of a run before each step, counted in steps or by the clock; and stop signals.

With `minutes` the schedule follows the clock: a step's position is the fraction of the time that
has passed when it begins. The positions decide the bits of a timed run, so the metrics record them
and `ReplayClock` can replay them.
"""

import contextlib
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from groundup.distributed.process_group import ProcessGroup
from groundup.errors import ConfigError
from groundup.files import read_json_lines
from groundup.runs.config import Interval, RunConfig

# Assumed progress of a timed run's first step, before anything is timed.
_FIRST_DELTA = 1e-3
# On CUDA the first steps compile and record graphs: they count as startup.
_WARM_UP_STEPS = 5
# A step's delta is the shortest of the recent ones: longer ones include an evaluation.
_NUM_RECENT = 5

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_log = logging.getLogger(__name__)


class Tick(NamedTuple):
    """One step of a run, counted from 1, and its position in the schedule."""

    step: int
    position: float
    """Its start: step - 1, or the fraction of the time that has passed."""
    delta: float
    """Its length: 1, or about the fraction of the time that it takes."""
    length: float
    """The end of the run: num_steps, or 1."""
    is_last: bool
    previous: float
    """The position of the step before."""

    @property
    def progress(self) -> float:
        """The fraction of the run that is done after this step."""
        return 1.0 if self.is_last else min(1.0, (self.position + self.delta) / self.length)

    def is_due(self, interval: Interval) -> bool:
        """Whether the interval ends at this step; always true for the last."""
        if self.is_last:
            return True
        every = interval.every_steps
        if 0 < every < 1 and self.length == 1.0 and isinstance(self.length, float):
            return math.floor(self.position / every) > math.floor(self.previous / every)
        every = max(1, round(every * self.length)) if 0 < every < 1 else every
        return every > 0 and self.step % every == 0


class StopRequest:
    """While in use, records the SIGINT or SIGTERM that asks the process to stop; a second one ends
    it at once. `promise` tells the user what the first one does."""

    def __init__(self, promise: str = "saving after this step") -> None:
        self._promise = promise
        self.signal: signal.Signals | None = None
        self._old_handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        # Python lets only the main thread set handlers; in another one signals do what they did.
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._old_handlers[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old_handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._old_handlers.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = signal.Signals(number)
        self.__exit__()
        # If the signal came while a line was being printed, Python cannot print another one.
        with contextlib.suppress(RuntimeError):
            _log.warning("%s: %s; a second one quits now", self.signal.name, self._promise)


class Clock:
    """Gives each step its `Tick`, and None when the time is up or a signal asks to stop.

    The only place where a run looks at time and signals. All ranks get the same ticks: each step
    starts an all-reduce and uses the result of the previous step's, so that no rank waits.
    """

    _config: RunConfig
    _ranks: ProcessGroup
    _stop: StopRequest

    def __init__(
        self,
        *,
        began: float | None = None,
        stop_after: int | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """began: what `minutes` counts from, in the time of `now`. Default: this moment.
        stop_after: stop after this step as a signal would: saved, to be resumed."""
        self._now, self._began = now, now() if began is None else began
        self._stop_after = math.inf if stop_after is None else stop_after
        self._num_warm_up = 0
        self._reserve_seconds = 0.0
        # When the first counted step began, and the time before a resume.
        self._started: float | None = None
        self._elapsed_before = 0.0
        self._budget_seconds: float | None = None
        # Positions of recent steps and of those that are not in a record yet.
        self._positions: dict[int, float] = {}
        self._reported_step = 0
        self._is_over = False
        # The pending all-reduce (max): the signal and the elapsed microseconds.
        self._answer: Callable[[], list[int]] | None = None

    def open(
        self,
        config: RunConfig,
        ranks: ProcessGroup,
        stop: StopRequest,
        saved: Mapping[str, Any],
        step: int,
        warm_up: Callable[[], float],
    ) -> None:
        """Begin after `step` steps with the `state` saved there. `warm_up` runs the evaluation and
        samples that follow a timed run's last step; it returns the seconds of the final save."""
        self._config, self._ranks, self._stop = config, ranks, stop
        self._reported_step = step
        self._num_warm_up = _WARM_UP_STEPS if config.device.startswith("cuda") else 0
        if config.minutes is not None and saved:
            self._elapsed_before = saved["elapsed_seconds"]
            self._budget_seconds = saved["budget_seconds"]
            self._positions = dict(saved["positions"])
            self._reported_step, self._is_over = saved["reported_step"], saved["is_over"]
        elif config.minutes is not None:
            if config.compile != "off":
                warm_up()
            began = self._now()
            self._reserve_seconds = warm_up() + self._now() - began
            self._seconds_left()

    def state(self, step: int) -> dict[str, Any]:
        """What a timed run needs to resume after that step."""
        if self._config.minutes is None:
            return {}
        return {
            "elapsed_seconds": self._elapsed_seconds(),
            "budget_seconds": self._budget_seconds,
            "positions": [pair for pair in self._positions.items() if pair[0] <= step],
            "reported_step": min(self._reported_step, step),
            "is_over": self._is_over and step == max(self._positions),
        }

    def tick(self, step: int) -> Tick | None:
        """The tick of a step, counted from 1; None if the run ends before it."""
        asked = self._ranks.all_reduce_max(
            self._stop.signal or 0, int(1e6 * self._elapsed_seconds())
        )
        number, microseconds = (self._answer or asked)()
        self._answer = None if self._ranks.size == 1 else asked
        if number:
            self._stop.signal = signal.Signals(number)
        num_steps = self._config.num_steps or math.inf
        if number or step > min(num_steps, self._stop_after) or self._is_over:
            return None
        if self._config.minutes is None:
            return Tick(step, step - 1, 1, num_steps, step == num_steps, step - 2)
        previous = self._positions.get(step - 1, 0.0)
        of_steps = (step - 1) / num_steps
        of_time = self._position_in_time(step, microseconds / 1e6)
        position = min(1.0, max(previous, of_steps, of_time))
        self._positions[step] = position
        delta = self._find_delta(step)
        self._is_over = step == num_steps or position + delta >= 1.0
        return Tick(step, position, delta, 1.0, self._is_over, previous)

    def is_done(self, step: int) -> bool:
        """Whether the run is finished after this many steps."""
        is_timed = self._config.minutes is not None
        return self._is_over or (not is_timed and step >= (self._config.num_steps or 0))

    def end(self) -> None:
        """End the run after the current step."""
        self._is_over = True

    def take_progress(self, step: int) -> dict[str, Any]:
        """For the metrics: the positions of all steps since the last record."""
        if self._config.minutes is None:
            return {}
        steps = range(self._reported_step + 1, step + 1)
        found = [self._positions[step] for step in steps if step in self._positions]
        self._reported_step = step
        kept = step - _NUM_RECENT - 1
        self._positions = {step: value for step, value in self._positions.items() if step > kept}
        return {"step_progress": found}

    def _position_in_time(self, step: int, elapsed_seconds: float) -> float:
        """The fraction of the time that has passed since the warm-up."""
        if self._num_warm_up > 0:
            self._num_warm_up -= 1
        elif self._started is None:
            self._started = self._now()
            if self._budget_seconds is None:
                self._budget_seconds = self._seconds_left()
        return elapsed_seconds / self._budget_seconds if self._budget_seconds else 0.0

    def _seconds_left(self) -> float:
        minutes = self._config.minutes or 0.0
        taken = self._now() - self._began + self._reserve_seconds
        left: float = self._ranks.broadcast(60 * minutes - taken)
        if left <= 0:
            found = f"minutes is {minutes:g}, but startup, evaluation and saving take {taken:.1f} s"
            raise ConfigError(f"{found}: give more")
        return left

    def _elapsed_seconds(self) -> float:
        """Time since the first step, without pauses between a stop and a resume."""
        since = 0.0 if self._started is None else self._now() - self._started
        return self._elapsed_before + since

    def _find_delta(self, step: int) -> float:
        recent = range(step - _NUM_RECENT, step + 1)
        known = [self._positions[one] for one in recent if one in self._positions]
        deltas = (later - earlier for earlier, later in pairwise(known))
        return min((delta for delta in deltas if delta > 0), default=_FIRST_DELTA)


class ReplayClock(Clock):
    """Replays the positions that a timed run recorded."""

    def __init__(self, metrics_file: Path, *, stop_after: int | None = None) -> None:
        super().__init__(stop_after=stop_after)
        self._recorded: dict[int, float] = {}
        for record in read_json_lines(metrics_file):
            values = record.get("step_progress", [])
            self._recorded.update(enumerate(values, record["step"] - len(values) + 1))

    def _position_in_time(self, step: int, elapsed_seconds: float) -> float:
        return self._recorded[step]

    def _find_delta(self, step: int) -> float:
        recent = range(max(1, step - _NUM_RECENT), step + 1)
        self._positions |= {one: self._recorded[one] for one in recent}
        return super()._find_delta(step)
