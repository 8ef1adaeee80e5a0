"""Where the records of a run go: metrics.jsonl first, then trackers, log and console."""

import logging
from typing import Any

from groundup.runs.config import RunConfig
from groundup.training.console import show_record
from groundup.training.metrics import Meter, MetricsWriter
from groundup.training.state import TrainingState
from groundup.training.trackers import Tracker

_log = logging.getLogger(__name__)


class Reporter:
    """Writes what is known after a step to every place that wants it."""

    def __init__(
        self, config: RunConfig, metrics: MetricsWriter, meter: Meter, trackers: list[Tracker]
    ) -> None:
        self._config = config
        self._metrics = metrics
        self._meter = meter
        self._trackers = trackers

    def write(self, state: TrainingState, figures: dict[str, Any]) -> None:
        """Complete the figures of the latest step to a record and send it off."""
        record = {
            "step": state.step,
            "wall_seconds": round(self._meter.wall_seconds, 3),
            "tokens": state.tokens,
            **figures,
        }
        self._metrics.write(record)
        for tracker in self._trackers:
            tracker.write(record)
        _log.info(show_record(record, self._config.num_steps, self._seconds_left(record)))
        prompts = self._config.samples.prompts
        for prompt, text in zip(prompts, record.get("samples", ()), strict=False):
            _log.info("sample: %s", " ".join(f"{prompt}{text}".split()))

    def _seconds_left(self, record: dict[str, Any]) -> float | None:
        rate = record.get("tokens_per_second")
        tokens_left = (self._config.num_steps - record["step"]) * self._config.tokens_per_step
        return tokens_left / rate if rate else None
