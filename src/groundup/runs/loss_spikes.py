"""Where a loss jumps out of its own recent course: judged line by line, with no look ahead."""

import math
from dataclasses import dataclass

_MEMORY = 0.95
_NUM_LINES_BEFORE_JUDGING = 20
_DEVIATIONS = 8.0
_LEAST_RISE = 0.1
_MAX_SPIKES = 200


@dataclass
class Spike:
    """A rise of one or several lines above what the lines before led to expect."""

    step: int
    loss: float
    expected: float


class SpikeDetector:
    """Holds a running mean of the loss and of its distance from that mean.

    A loss is a spike if it lies above the mean by eight of the usual distances and by a tenth of
    the mean. Spikes move the mean only as far as an ordinary line could, so that a plateau after
    a jump becomes the new course in time and is then no spike any more.
    """

    def __init__(self) -> None:
        self.spikes: list[Spike] = []
        self.num_spikes = 0
        self._mean = 0.0
        self._distance = 0.0
        self._num_lines = 0
        self._is_in_spike = False

    def add(self, step: int, loss: float) -> None:
        """Judge the next loss; those that are no numbers are passed over."""
        if not math.isfinite(loss):
            return
        self._num_lines += 1
        if self._num_lines == 1:
            self._mean = loss
            return
        rise = loss - self._mean
        allowed = max(_DEVIATIONS * self._distance, _LEAST_RISE * abs(self._mean))
        is_spike = self._num_lines > _NUM_LINES_BEFORE_JUDGING and rise > allowed
        if is_spike:
            self._note(step, loss)
        self._is_in_spike = is_spike
        moved = min(allowed, rise)
        self._mean += (1 - _MEMORY) * moved
        self._distance = _MEMORY * self._distance + (1 - _MEMORY) * abs(moved)

    def _note(self, step: int, loss: float) -> None:
        if not self._is_in_spike:
            self.num_spikes += 1
            if len(self.spikes) < _MAX_SPIKES:
                self.spikes.append(Spike(step, loss, self._mean))
        elif self.spikes and loss > self.spikes[-1].loss:
            self.spikes[-1].step, self.spikes[-1].loss = step, loss
