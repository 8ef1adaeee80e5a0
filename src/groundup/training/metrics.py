"""The figures of a run: metrics.jsonl, which is the truth, and the clock behind speed and MFU.

One line a step that has something to say. How a line looks on the console is `console`.
"""

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from groundup.files import append_json_line
from groundup.planner.flops import training_flops_per_token
from groundup.runs.config import RunConfig
from groundup.runtime import peak_memory_bytes
from groundup.training.peak_rate import find_peak

# Taken from the machine, so not the same when a run is repeated; all other figures are.
MEASURED = frozenset({"wall_seconds", "tokens_per_second", "mfu", "memory_bytes"})

_log = logging.getLogger(__name__)


class MetricsWriter:
    """Appends records to metrics.jsonl. What a full disk refuses is kept and tried again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: list[dict[str, Any]] = []

    def write(self, record: dict[str, Any]) -> None:
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

    MFU is the share of the device's best rate that the model's own operations reach; it is None
    where that rate is not known.
    """

    def __init__(self, config: RunConfig, wall_seconds: float = 0.0, tokens: int = 0) -> None:
        self._device = torch.device(config.device)
        self._flops_per_token = training_flops_per_token(config.model)
        self._peak_flops_per_second = find_peak(config)
        self._wall_seconds_before = wall_seconds
        self._began = self._since = time.perf_counter()
        self._tokens = tokens
        self._paused_seconds = 0.0

    @property
    def wall_seconds(self) -> float:
        return self._wall_seconds_before + time.perf_counter() - self._began

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Time spent within is no training: evaluation, samples, checkpoints."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._paused_seconds += time.perf_counter() - began

    def read(self, tokens: int) -> dict[str, Any]:
        """Speed since the last reading, MFU and memory, as a record holds them."""
        now = time.perf_counter()
        seconds = max(now - self._since - self._paused_seconds, 1e-9)
        rate = (tokens - self._tokens) / seconds
        self._since, self._tokens, self._paused_seconds = now, tokens, 0.0
        peak = self._peak_flops_per_second
        return {
            "tokens_per_second": round(rate, 1),
            "mfu": None if peak is None else round(rate * self._flops_per_token / peak, 5),
            "memory_bytes": memory_bytes(self._device),
        }


def memory_bytes(device: torch.device) -> int:
    """The most memory the run has had: of the GPU where it has one, else of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    return peak_memory_bytes()
