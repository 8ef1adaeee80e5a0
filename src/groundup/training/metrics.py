"""The metrics of a run while it trains: speed and MFU measured, and each record sent on.

metrics.jsonl, which is the truth, gets one line a step that has something to say; then come
callbacks, log and console.
"""

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from groundup.files import append_json_line
from groundup.planner.flops import training_flops_per_token
from groundup.runs.config import RunConfig
from groundup.runtime import format_duration, peak_memory_bytes
from groundup.training.callbacks import Callback
from groundup.training.state import TrainingState

# Taken from the machine, so not the same when a run is repeated; all other metrics are.
MEASURED = frozenset(
    {"wall_seconds", "tokens_per_second", "tokens_per_second_per_rank", "mfu", "memory_bytes"}
)

TASK_PREFIX = "task/"
"""Before the name of a task: the metric that holds its accuracy."""

_SHOWN = {
    "loss": "loss {:.4f}",
    "validation_loss": "validation loss {:.4f}",
    "perplexity": "perplexity {:.2f}",
    "bits_per_byte": "bits per byte {:.4f}",
    "learning_rate": "learning rate {:.2e}",
    "gradient_norm": "gradient norm {:.3f}",
}

_log = logging.getLogger(__name__)


class MetricsWriter:
    """Sends records to metrics.jsonl, callbacks and log.

    What a full disk refuses is kept and tried again.
    """

    def __init__(
        self, config: RunConfig, path: Path, meter: "Meter", callbacks: Sequence[Callback] = ()
    ) -> None:
        self._config = config
        self._path = path
        self._meter = meter
        self._callbacks = callbacks
        self._waiting: list[dict[str, Any]] = []

    def write(self, state: TrainingState, metrics: dict[str, Any], progress: float) -> None:
        """Complete the metrics of the latest step to a record and send it off."""
        record = base_record(state, self._meter.wall_seconds) | metrics
        is_first_failure = not self._waiting
        self._waiting.append(record)
        try:
            self._write_waiting()
        except OSError as error:
            if is_first_failure:
                _log.error(
                    "%s cannot be written (%s): its lines are kept in memory and tried again",
                    self._path,
                    error.strerror,
                )
        for callback in self._callbacks:
            callback.record(record)
        left = self._meter.seconds_left(progress)
        _log.info(show_record(record, self._config.num_steps, left))
        prompts = self._config.samples.prompts
        for prompt, text in zip(prompts, record.get("samples", ()), strict=False):
            _log.info("sample: %s", " ".join(f"{prompt}{text}".split()))

    def sync(self) -> None:
        """Make sure that every record is on disk; raises OSError if that cannot be."""
        self._write_waiting()
        if not self._path.exists():
            return
        file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(file)
        finally:
            os.close(file)

    def _write_waiting(self) -> None:
        while self._waiting:
            append_json_line(self._path, self._waiting[0])
            self._waiting.pop(0)


class Meter:
    """Wall clock of a run over all its resumes, tokens a second while it trains, and MFU.

    MFU is the fraction of the device's peak that the model's own operations reach; it is None
    where that peak is not known.
    """

    def __init__(
        self,
        config: RunConfig,
        peak_flops_per_second: float | None,
        state: TrainingState,
        num_ranks: int = 1,
    ) -> None:
        self._device = torch.device(config.device)
        self._flops_per_token = training_flops_per_token(config.model)
        self._peak = None if peak_flops_per_second is None else peak_flops_per_second * num_ranks
        self._num_ranks = num_ranks
        self._wall_seconds_before = state.wall_seconds
        self._began = self._since = time.perf_counter()
        self._tokens = state.tokens
        self._paused_seconds = 0.0
        self._first_reading: tuple[float, float] | None = None

    @property
    def wall_seconds(self) -> float:
        return self._wall_seconds_before + time.perf_counter() - self._began

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Time spent within is not training: an evaluation, a sample, a checkpoint."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._paused_seconds += time.perf_counter() - began

    def read(self, tokens: int) -> dict[str, Any]:
        """Speed since the last reading, MFU and memory, as a record holds them."""
        now = time.perf_counter()
        seconds = max(now - self._since - self._paused_seconds, 1e-9)
        speed = (tokens - self._tokens) / seconds
        self._since, self._tokens, self._paused_seconds = now, tokens, 0.0
        of_ranks = {"tokens_per_second_per_rank": round(speed / self._num_ranks, 1)}
        mfu = None if self._peak is None else round(speed * self._flops_per_token / self._peak, 5)
        return {
            "tokens_per_second": round(speed, 1),
            **(of_ranks if self._num_ranks > 1 else {}),
            "mfu": mfu,
            "memory_bytes": self._memory_bytes(),
        }

    def seconds_left(self, progress: float) -> float | None:
        """By how long it took since this was first asked."""
        now = time.perf_counter()
        first_progress, began = self._first_reading = self._first_reading or (progress, now)
        done = progress - first_progress
        return (now - began) / done * (1 - progress) if done > 0 else None

    def _memory_bytes(self) -> int:
        """The most memory the run has had: of the GPU where it has one, else of the process."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        return peak_memory_bytes()


def base_record(state: TrainingState, wall_seconds: float) -> dict[str, Any]:
    """What every record has."""
    return {"step": state.step, "wall_seconds": round(wall_seconds, 3), "tokens": state.tokens}


def show_record(
    record: dict[str, Any], num_steps: int | None, seconds_left: float | None = None
) -> str:
    """One line: step, losses, learning rate, gradient norm, speed, MFU, time left."""
    whole = "" if num_steps is None else f"{num_steps:,}"
    parts = [f"step {record['step']:>{len(whole)},}" + (f"/{whole}" if whole else "")]
    if record.get("skipped"):
        parts.append(f"skipped: {record['reason']}")
    for key, template in _SHOWN.items():
        if record.get(key) is not None:
            parts.append(template.format(record[key]))
    for key, value in record.items():
        if key.startswith(TASK_PREFIX) and value is not None:
            parts.append(f"{key.removeprefix(TASK_PREFIX)} {value:.1%}")
    for suffix, unit in (("", "tokens/s"), ("_per_rank", "per rank")):
        if (speed := record.get(f"tokens_per_second{suffix}")) is not None:
            parts.append(f"{show_speed(speed)} {unit}")
    if record.get("mfu") is not None:
        parts.append(f"MFU {100 * record['mfu']:.1f}%")
    if seconds_left is not None:
        parts.append(f"{format_duration(seconds_left)} left")
    return "  ".join(parts)


def show_speed(speed: float) -> str:
    """Three digits and a unit: 950, 12.3k, 4.51M."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if speed >= size:
            scaled = speed / size
            digits = 2 if scaled < 10 else 1 if scaled < 100 else 0
            return f"{scaled:.{digits}f}{unit}"
    return f"{speed:.0f}"
