"""What the parts of a run cost on this machine: each is really done once or more, and timed.

It comes before the run is built and leaves no trace in it: building seeds every generator anew,
and what was made for the probe is given back.
"""

import dataclasses
import functools
import gc
import itertools
import logging
import math
import shutil
import time
from collections.abc import Callable, Collection
from pathlib import Path

import torch

from groundup.checkpoint import CheckpointFolder
from groundup.model import TransformerLM
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.tokenizer import Tokenizer
from groundup.training.building import RunData, build_evaluator, build_loader
from groundup.training.execution import autocast
from groundup.training.rehearsal import Rehearsal, num_warm_up_steps
from groundup.training.time_budget import (
    Costs,
    Repeated,
    TimeBudget,
    describe_settlement,
    settle_num_steps,
)
from groundup.training.timetable import measures_checkpoints

# Timing takes this fraction of the budget, in time or in steps, but no longer than so many seconds.
_WATCHED_FRACTION = 0.02
_WATCHED_SECONDS = 5.0
# A processor does other things meanwhile, and the loop around a short step takes time there.
_CPU_RESERVE = 0.04
_SCRATCH_NAME = ".timing"

_log = logging.getLogger(__name__)

WriteSample = Callable[[TransformerLM, Tokenizer, str], str]


def fit_into_budget(
    config: RunConfig,
    data: RunData,
    folder: RunFolder,
    budget: TimeBudget,
    write_sample: WriteSample | None,
) -> RunConfig:
    """Settle num_steps by measuring, and log what was found."""
    scratch = folder.path / _SCRATCH_NAME
    try:
        if config.compile != "off" or config.device.startswith("cuda"):
            # The run finds compiled what was compiled before: its own start is like the second.
            _Stage(config, data, scratch, write_sample).go_through()
            _free_memory(config)
        costs = measure_costs(config, data, scratch, budget, write_sample)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        _free_memory(config)
    passed_seconds = time.monotonic() - budget.began
    settled = settle_num_steps(config, costs, budget, passed_seconds)
    _log.info(describe_settlement(costs, budget, passed_seconds, settled.num_steps))
    return settled


def measure_costs(
    config: RunConfig,
    data: RunData,
    scratch: Path,
    budget: TimeBudget,
    write_sample: WriteSample | None,
) -> Costs:
    """Build everything, do everything once, then time steps for a small part of the budget."""
    began = time.perf_counter()
    stage = _Stage(config, data, scratch, write_sample)
    first = stage.go_through()
    starting_seconds = time.perf_counter() - began - sum(first.values())
    num_timed, seconds = stage.time_steps(budget)
    step_seconds = max(seconds / num_timed, 1e-9)
    # The first steps, which belong to the start, are steps all the same.
    starting_seconds -= num_warm_up_steps(config) * step_seconds
    repeated = {}
    for name, seconds in first.items():
        if config.compile != "off":
            seconds = _timed(stage.works[name])
        starting_seconds += max(0.0, first[name] - seconds)
        repeated[name] = _repeated(config, name, seconds, budget.chosen)
    save_seconds = _timed(stage.save)
    repeated["checkpoint"] = _repeated(config, "checkpoint", save_seconds, budget.chosen)
    costs = Costs(
        config.num_steps,
        step_seconds,
        max(0.0, starting_seconds),
        repeated,
        num_timed,
        measures_checkpoints(config),
    )
    return dataclasses.replace(costs, reserve=_CPU_RESERVE) if config.device == "cpu" else costs


def _repeated(config: RunConfig, name: str, seconds: float, chosen: Collection[str]) -> Repeated:
    section = {"evaluation": "evaluation", "sample": "samples", "checkpoint": "checkpoints"}[name]
    every_steps = getattr(config, section).every_steps
    return Repeated(seconds, every_steps, f"{section}.every_steps" not in chosen)


class _Stage:
    """All parts of a run, made to be tried."""

    def __init__(
        self, config: RunConfig, data: RunData, scratch: Path, write_sample: WriteSample | None
    ) -> None:
        self._config = config
        self._rehearsal = Rehearsal(config)
        self._loader = build_loader(config, data.train)
        self._checkpoints = CheckpointFolder(scratch)
        model = self._rehearsal.state.model
        self.works: dict[str, Callable[[], object]] = {}
        evaluator = build_evaluator(config, data)
        if evaluator is not None:
            computing = functools.partial(autocast, config)
            self.works["evaluation"] = functools.partial(evaluator, model, computing)
        if write_sample is not None and config.samples.every_steps:
            self.works["sample"] = functools.partial(self._sample, write_sample, data.tokenizer)

    def go_through(self) -> dict[str, float]:
        """The first steps, and what computes besides them once; the seconds of the latter."""
        with self._loader.batches(0, num_warm_up_steps(self._config)) as batches:
            self._rehearsal.take(batches)
        return {name: _timed(work) for name, work in self.works.items()}

    def time_steps(self, budget: TimeBudget) -> tuple[int, float]:
        """A number of steps and what they took."""
        num_at_once = 20 if self._config.device.startswith("cuda") else 3
        most_seconds = min(_WATCHED_SECONDS, _WATCHED_FRACTION * budget.seconds)
        most_steps = _WATCHED_FRACTION * (budget.max_steps or math.inf)
        num_steps, seconds = 0, 0.0
        with self._loader.batches() as batches:
            while num_steps == 0 or (seconds < most_seconds and num_steps < most_steps):
                seconds += self._rehearsal.take(itertools.islice(batches, num_at_once))
                num_steps += num_at_once
        return num_steps, seconds

    def _sample(self, write_sample: WriteSample, tokenizer: Tokenizer) -> None:
        with torch.no_grad():
            for prompt in self._config.samples.prompts:
                write_sample(self._rehearsal.state.model, tokenizer, prompt)

    def save(self) -> None:
        state = self._rehearsal.state
        self._checkpoints.save(
            0, state.model.state_dict(), state.optimizer.state_dict(), state.counters()
        )
        # A run drops an old one for each new one.
        shutil.rmtree(self._checkpoints.path)


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _free_memory(config: RunConfig) -> None:
    """Drop what only cycles hold, a recorded graph with its memory for one."""
    gc.collect()
    if config.device.startswith("cuda"):
        device = torch.device(config.device)
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
