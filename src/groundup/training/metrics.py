"""Metrics during training: speed, MFU, and records for metrics.jsonl, callbacks and the log.

metrics.jsonl is the source of truth and is written first. Programs receive records by a `Callback`.
"""

import contextlib
import errno
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from groundup import disk
from groundup.files import append_json_line
from groundup.model import TransformerLM
from groundup.planner.parameters import training_flops_per_token
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runtime import peak_memory_bytes
from groundup.tokenizer import Tokenizer
from groundup.training.machine import find_peak
from groundup.training.state import TrainingState

# Measured, so different when a run is repeated; all other metrics are reproducible.
MEASURED = frozenset({"wall_seconds", "tokens_per_second", "mfu", "memory_bytes"})

# Shown in the log, with their formats.
_SHOWN = {
    "loss": ".4f",
    "validation_loss": ".4f",
    "bits_per_byte": ".4f",
    "preference_accuracy": ".1%",
    "preference_margin": ".3f",
    "learning_rate": ".2e",
    "gradient_norm": ".3f",
    "tokens_per_second": ",.0f",
    "mfu": ".1%",
}

_log = logging.getLogger(__name__)


class Metrics:
    """Measures wall-clock time over all resumes, tokens per second, and MFU. Sends records to
    metrics.jsonl, callbacks and the log; retries what a full disk refused."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        state: TrainingState,
        callbacks: "Sequence[Callback]",
    ) -> None:
        self._config, self.folder, self._callbacks = config, folder, callbacks
        self._flops_per_token = training_flops_per_token(config.model)
        self._peak = (find_peak(config) or 0.0) * state.reduction.ranks.size
        self._wall_seconds_before = state.wall_seconds
        self._began = self._since = time.perf_counter()
        self._tokens = state.tokens
        self._paused_seconds = 0.0
        self._waiting: list[dict[str, Any]] = []

    @property
    def wall_seconds(self) -> float:
        return self._wall_seconds_before + time.perf_counter() - self._began

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Exclude the time within: evaluations, samples, checkpoints."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._paused_seconds += time.perf_counter() - began

    def read(self, tokens: int) -> dict[str, Any]:
        """Speed since the last reading, MFU and memory, for a record."""
        now = time.perf_counter()
        seconds = max(now - self._since - self._paused_seconds, 1e-9)
        speed = (tokens - self._tokens) / seconds
        self._since, self._tokens, self._paused_seconds = now, tokens, 0.0
        device = self._config.device
        is_cuda = device.startswith("cuda")
        memory = torch.cuda.max_memory_allocated(device) if is_cuda else peak_memory_bytes()
        mfu = round(speed * self._flops_per_token / self._peak, 5) if self._peak else None
        return {"tokens_per_second": round(speed, 1), "mfu": mfu, "memory_bytes": memory}

    def write(self, state: TrainingState, metrics: dict[str, Any]) -> None:
        """Complete the metrics of the latest step to a record and send it."""
        seconds = round(self.wall_seconds, 3)
        record = {"step": state.step, "wall_seconds": seconds, "tokens": state.tokens} | metrics
        self._waiting.append(record)
        try:
            self._write_waiting()
        except OSError as error:
            if len(self._waiting) == 1:
                _log.error("metrics cannot be written, their lines wait: %s", error)
        for callback in self._callbacks:
            callback.record(record)
        _log.info(show_record(record, self._config.num_steps))
        prompts = self._config.samples.prompts
        for prompt, text in zip(prompts, record.get("samples", ()), strict=False):
            _log.info("sample: %s", " ".join(f"{prompt}{text}".split()))

    def sync(self) -> None:
        """Make sure that every record is on disk; raises OSError otherwise."""
        self._write_waiting()
        if self.folder.metrics_file.exists():
            disk.sync(self.folder.metrics_file)

    def _write_waiting(self) -> None:
        if not self.folder.is_here():
            raise FileNotFoundError(errno.ENOENT, "the run was renamed", str(self.folder.path))
        while self._waiting:
            append_json_line(self.folder.metrics_file, self._waiting[0])
            self._waiting.pop(0)


def show_record(record: dict[str, Any], num_steps: int | None) -> str:
    """One line: step, losses, learning rate, gradient norm, speed, MFU."""
    whole = "" if num_steps is None else f"{num_steps:,}"
    parts = [f"step {record['step']:>{len(whole)},}" + (f"/{whole}" if whole else "")]
    if "reason" in record:
        parts.append(f"skipped: {record['reason']}")
    for name, digits in _SHOWN.items():
        if (value := record.get(name)) is not None:
            parts.append(f"{name.replace('_', ' ')} {value:{digits}}")
    return "  ".join(parts)


class Callback:
    """Hooks into training; override what you need."""

    def after_step(self, step: int, progress: float) -> None:
        """On every rank, after a step and its evaluation and checkpoint; progress: from 0 to 1."""

    def sample(self, model: TransformerLM, tokenizer: Tokenizer, prompt: str) -> str | None:
        """Continue the prompt, without changing the model; the first callback that overrides this
        is used."""

    def record(self, record: dict[str, Any]) -> None:
        """On the first rank, a line of metrics.jsonl."""

    def close(self) -> None:
        """When the run ends, also by an error."""


class AfterStep(Callback):
    """Calls a function after every step, with the step and the progress from 0 to 1."""

    def __init__(self, call: Callable[[int, float], object]) -> None:
        self._call = call

    def after_step(self, step: int, progress: float) -> None:
        self._call(step, progress)
