"""What a run takes on this machine: real steps are taken, timed and thrown away.

`--minutes` gets its number of steps from it, `groundup plan --probe` speed and memory. A probe
leaves no trace: building a run seeds every generator anew, and what was made here is given back.
"""

import functools
import gc
import itertools
import logging
import math
import shutil
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from groundup.checkpoint import CheckpointFolder
from groundup.config import MAX_STEPS, flatten, load_settings
from groundup.data.batches.loader import Batch, BatchLoader
from groundup.errors import ConfigError
from groundup.model import TransformerLM
from groundup.model.config import ModelConfig
from groundup.nn.adapters import adapted_state
from groundup.planner import (
    Accelerator,
    MeasuredStep,
    choose_micro_batch,
    describe_cpu,
    find_accelerator,
    step_flops,
)
from groundup.planner.hardware import Precision, rate_in
from groundup.planner.memory import check_fits
from groundup.runs.config import RunConfig, with_num_steps, with_steps_of
from groundup.runs.folder import RunFolder
from groundup.runtime import count_of, num_cores, peak_memory_bytes
from groundup.tokenizer import Tokenizer
from groundup.training.execution import (
    autocast,
    device_name,
    matmul_precision,
    planned_memory,
    resolve,
    switches,
)
from groundup.training.run_data import RunData, build_evaluator, build_loader, find_document_id
from groundup.training.setup import build_state
from groundup.training.step import QueuedStep, choose_step
from groundup.training.tasks import build_tasks
from groundup.training.timetable import times_due

WriteSample = Callable[[TransformerLM, Tokenizer, str], str]

# Timing takes this fraction of the budget, in time or in steps, but no longer than so many seconds.
_TIMED_FRACTION = 0.02
_TIMED_SECONDS = 5.0
# Kept free, for no two stretches of a run are equally fast. A processor does other things
# meanwhile, and the loop around a short step takes time there.
_RESERVE, _CPU_RESERVE = 0.02, 0.04
_PROBE_STEPS = 3
# A processor is as fast on small batches, and nobody wants to wait for large ones.
_CPU_PROBE_TOKENS = 4_096
# In environment.json.
_KEY = "time_budget"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TimeBudget:
    """The time that a run may take."""

    seconds: float
    began: float
    """When it began to run, by time.monotonic."""
    chosen: Collection[str] = ()
    """Settings counted in steps that stay as they are; all others keep their fraction of it."""
    max_steps: int | None = None
    """The run has no more steps than these, however many fit."""

    def to_json(self) -> dict[str, Any]:
        """For environment.json: what the number of steps of the run follows from."""
        return {_KEY: {"minutes": round(self.seconds / 60, 9), "max_steps": self.max_steps}}


@dataclass(frozen=True)
class Costs:
    """What the parts of a run take, in seconds."""

    step: float
    start: float = 0.0
    """From the measuring to the first step, and what is slower the first time than later."""
    repeated: Mapping[str, float] = field(default_factory=dict)
    """One evaluation, sample or checkpoint; see `times_due`."""
    num_timed: int = 0
    """Steps that `step` is the mean of."""
    reserve: float = _RESERVE
    """The fraction of a budget to keep free."""

    def of_run(self, config: RunConfig, steps_done: int = 0) -> float:
        """All of a run that comes after so many steps."""
        seconds = self.start + (config.num_steps - steps_done) * self.step
        return seconds + self.of_repeated(config, steps_done)

    def of_repeated(self, config: RunConfig, steps_done: int = 0) -> float:
        times = self.times(config, steps_done)
        return sum(count * self.repeated[name] for name, count in times.items())

    def times(self, config: RunConfig, steps_done: int = 0) -> dict[str, int]:
        times = times_due(config, steps_done)
        return {name: count for name, count in times.items() if name in self.repeated}


def choose_num_steps(
    config: RunConfig, costs: Costs, budget: TimeBudget, passed_seconds: float
) -> RunConfig:
    """The run with about as many steps as fit into what is left of the budget, never with more.

    An error where one step does not fit, with everything else as often as the settings mean it.
    """
    # An interval that was chosen does not say how often, but once at least.
    values = dict(flatten(config.model_dump()))
    once = {name: config.num_steps for name in budget.chosen if values.get(name)}
    meant = load_settings(RunConfig, None, {**values, **once})
    needed_seconds = costs.start + costs.step + costs.of_repeated(meant)
    if needed_seconds > _seconds_left(costs, budget, passed_seconds):
        parts = [
            f"{show_seconds(passed_seconds)} have passed",
            f"to start takes {show_seconds(costs.start)}",
            f"one step {show_seconds(costs.step)}",
            *(
                f"{times} × {name} {show_seconds(times * costs.repeated[name])}"
                for name, times in costs.times(meant).items()
            ),
        ]
        least_minutes = (passed_seconds + needed_seconds) / (1.0 - costs.reserve) / 60
        raise ConfigError(
            f"{_minutes(budget)} cannot hold this run: {', '.join(parts)}. Give it more than "
            f"{least_minutes:.2g} minutes, evaluate on fewer windows (--evaluation.num-windows) or "
            f"less often, or make the model or the batch smaller"
        )
    return longest_run(config, costs, budget, passed_seconds)


def with_decided_length(config: RunConfig, folder: RunFolder, budget: TimeBudget) -> RunConfig:
    """The settings of a resume, with the length that this time decided when the run began.

    Raises ConfigError if another time did, or none.
    """
    limits = folder.read_environment().get(_KEY)
    if limits != budget.to_json()[_KEY]:
        advice = "without --minutes"
        if isinstance(limits, dict):
            advice = f"with --minutes {limits.get('minutes')}"
            if limits.get("max_steps") is not None:
                advice += f" --num-steps {limits['max_steps']}"
        raise ConfigError(
            f"the run in {folder.path} has begun with its number of steps, so that another time "
            f"cannot decide it any more: resume {advice}"
        )
    return with_steps_of(config, folder.read_config(), budget.chosen)


def longest_run(
    config: RunConfig,
    costs: Costs,
    budget: TimeBudget,
    passed_seconds: float,
    steps_done: int = 0,
) -> RunConfig:
    """The run with about as many steps as fit, and one more than are done at least."""
    left_seconds = _seconds_left(costs, budget, passed_seconds)
    most = min(budget.max_steps or MAX_STEPS, MAX_STEPS) - steps_done
    num_steps = min(int(left_seconds / costs.step) + 1, most)
    while True:
        run = with_num_steps(config, steps_done + max(1, num_steps), budget.chosen)
        seconds = costs.of_run(run, steps_done)
        if seconds <= left_seconds or num_steps <= 1:
            return run
        # As if all its time were steps: too many still, but for the rounding of intervals.
        num_steps = min(num_steps - 1, int(num_steps * left_seconds / seconds))


def describe_choice(costs: Costs, budget: TimeBudget, passed_seconds: float, run: RunConfig) -> str:
    """One line: what was measured, and the number of steps that follows from it."""
    limits = _minutes(budget)
    if budget.max_steps is not None:
        limits += f", at most {budget.max_steps:,} step{'' if budget.max_steps == 1 else 's'}"
    parts = [
        f"{count_of(run.num_steps, 'step')} of {show_seconds(costs.step)} "
        f"(mean of {costs.num_timed})",
        *(
            f"{times} × {name} of {show_seconds(costs.repeated[name])}"
            for name, times in costs.times(run).items()
        ),
        f"{show_seconds(passed_seconds)} passed before",
        f"{show_seconds(costs.start)} to start",
        f"{show_seconds(costs.reserve * budget.seconds)} in reserve",
    ]
    return f"{limits}: {', '.join(parts)}"


def show_seconds(seconds: float) -> str:
    """Three digits and a unit."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.1f} s"


class Rehearsal:
    """A model and an optimizer made as a run makes them; `switches` must be on, as for a run."""

    def __init__(self, config: RunConfig, document_id: int | None = None) -> None:
        self.state = build_state(config, document_id=document_id)
        self._step = choose_step(config, self.state.model, self.state.optimizer)

    def take(self, batches: Iterable[Batch]) -> float:
        """Seconds of a step for each batch; as in a run, results are read one step later."""
        began = time.perf_counter()
        queued: QueuedStep | None = None
        for batch in batches:
            launched = self._step(batch)
            if queued is not None:
                queued.read()
            queued = launched
        if queued is not None:
            queued.read()
        return time.perf_counter() - began


def fit_into_budget(
    config: RunConfig,
    data: RunData,
    folder: Path,
    budget: TimeBudget,
    write_sample: WriteSample | None,
) -> tuple[RunConfig, Costs]:
    """The run with the number of steps that fits, and what was measured; the log says it."""
    scratch = folder / ".timing"
    try:
        if config.compile != "off" or config.device.startswith("cuda"):
            # The run finds compiled what was compiled before: its own start is like the second.
            _warm_up(config, data, write_sample)
            _free_memory(config)
        costs = _measure_costs(config, data, scratch, budget, write_sample)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        _free_memory(config)
    passed_seconds = time.monotonic() - budget.began
    run = choose_num_steps(config, costs, budget, passed_seconds)
    _log.info(describe_choice(costs, budget, passed_seconds, run))
    return run, costs


def _measure_costs(
    config: RunConfig,
    data: RunData,
    scratch: Path,
    budget: TimeBudget,
    write_sample: WriteSample | None,
) -> Costs:
    """Build everything, do everything once, then time steps for a small part of the budget."""
    began = time.perf_counter()
    rehearsal, loader, parts, first = _warm_up(config, data, write_sample)
    start = time.perf_counter() - began - sum(first.values())
    num_timed, seconds = _time_run_steps(config, rehearsal, loader, budget)
    step = max(seconds / num_timed, 1e-9)
    # The first steps, which belong to the start, are steps all the same.
    start -= num_warm_up_steps(config) * step
    repeated = dict(first)
    if config.compile != "off":
        repeated = {name: _timed(part) for name, part in parts.items()}
    start += sum(max(0.0, first[name] - repeated[name]) for name in first)
    state, checkpoints = rehearsal.state, CheckpointFolder(scratch)

    def save() -> None:
        weights, moments = adapted_state(state.model), state.optimizer.state_dict()
        checkpoints.save(0, weights, moments, state.counters())
        # A run drops an old one for each new one.
        shutil.rmtree(scratch)

    repeated["checkpoint"] = _timed(save)
    reserve = _CPU_RESERVE if config.device == "cpu" else _RESERVE
    return Costs(step, max(0.0, start), repeated, num_timed, reserve)


def _warm_up(
    config: RunConfig, data: RunData, write_sample: WriteSample | None
) -> tuple[Rehearsal, BatchLoader, dict[str, Callable[[], object]], dict[str, float]]:
    """All of a run after its first steps; what computes besides them, and its first seconds."""
    rehearsal = Rehearsal(config, find_document_id(config, data))
    loader = build_loader(config, data.train)
    model = rehearsal.state.model
    parts: dict[str, Callable[[], object]] = {}
    tokenizer, end_id = data.tokenizer, data.end_id
    measures = [
        measure
        for measure in (build_evaluator(config, data), build_tasks(config, tokenizer, end_id))
        if measure is not None
    ]
    if measures:
        in_precision = functools.partial(autocast, config)
        parts["evaluation"] = lambda: [measure(model, in_precision) for measure in measures]
    if write_sample is not None and config.samples.every_steps:

        def sample() -> None:
            with torch.no_grad():
                for prompt in config.samples.prompts:
                    write_sample(model, data.tokenizer, prompt)

        parts["sample"] = sample
    with loader.batches(0, num_warm_up_steps(config)) as batches:
        rehearsal.take(batches)
    return rehearsal, loader, parts, {name: _timed(part) for name, part in parts.items()}


def _time_run_steps(
    config: RunConfig, rehearsal: Rehearsal, loader: BatchLoader, budget: TimeBudget
) -> tuple[int, float]:
    """A number of steps and what they took."""
    num_at_once = 20 if config.device.startswith("cuda") else 3
    max_seconds = min(_TIMED_SECONDS, _TIMED_FRACTION * budget.seconds)
    max_steps = _TIMED_FRACTION * (budget.max_steps or math.inf)
    num_steps, seconds = 0, 0.0
    with loader.batches() as batches:
        while num_steps == 0 or (seconds < max_seconds and num_steps < max_steps):
            seconds += rehearsal.take(itertools.islice(batches, num_at_once))
            num_steps += num_at_once
    return num_steps, seconds


@dataclass(frozen=True)
class Probe:
    """What a few steps took on this machine, beside what was predicted."""

    device: Accelerator
    precision: Precision
    micro_batch: int
    seconds_per_step: float
    tokens_per_second: float
    mfu: float
    peak_bytes: int
    predicted_bytes: int

    @property
    def step(self) -> MeasuredStep:
        """What the planner corrects its closed form by."""
        return MeasuredStep(self.micro_batch, self.seconds_per_step, self.peak_bytes)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "device": self.device.name}


def probe_this_machine(config: RunConfig, host_memory_bytes: int) -> Probe:
    """Train a model of these settings for a few steps of one micro-batch of random ids."""
    config = resolve(config)
    precision = matmul_precision(config)
    device = _describe_device(config, host_memory_bytes)
    memory = planned_memory(config)
    micro_batch = config.micro_batch
    if micro_batch is None:
        most = choose_micro_batch(memory, config.batch_size, device.memory_bytes)
        check_fits(memory, most, device.memory_bytes)
        if config.device == "cpu":
            most = min(most, max(1, _CPU_PROBE_TOKENS // config.model.context_length))
        micro_batch = next(n for n in range(most, 0, -1) if config.batch_size % n == 0)
    config = config.model_copy(update={"batch_size": micro_batch, "micro_batch_size": micro_batch})
    seconds, peak_bytes = time_steps(config, num_warm_up_steps(config))
    speed = step_flops(config.model, micro_batch) / seconds
    peak = rate_in(device, precision)
    if not peak or speed > peak:
        # Of a stranger, or a better one than thought, the best that is known is what it just did.
        peak = speed
        device = device._replace(
            float32_flops_per_second=speed,
            tf32_flops_per_second=speed if precision == "tf32" else None,
            bfloat16_flops_per_second=speed if precision == "bfloat16" else None,
        )
    return Probe(
        device=device,
        precision=precision,
        micro_batch=micro_batch,
        seconds_per_step=seconds,
        tokens_per_second=config.tokens_per_step / seconds,
        mfu=speed / peak,
        peak_bytes=peak_bytes,
        predicted_bytes=memory.bytes_at(micro_batch),
    )


def time_steps(config: RunConfig, num_warm_up: int) -> tuple[float, int]:
    """Seconds of a step, the median of a few after the warm-up, and the peak of the memory."""
    # What is loaded on the way to a first step, here of next to nothing, is not part of its memory.
    sizes = {"context_length": 16, "d_model": 16, "num_layers": 1, "num_heads": 1, "vocab_size": 16}
    one = {"compile": "off", "batch_size": 1, "micro_batch_size": 1, "model": ModelConfig(**sizes)}
    small = config.model_copy(update=one)
    Rehearsal(small).take([random_batch(small, 0)])
    before = peak_memory_bytes()
    with switches(config):
        rehearsal = Rehearsal(config)
        seconds = [
            rehearsal.take([random_batch(config, number)])
            for number in range(num_warm_up + _PROBE_STEPS)
        ]
        if config.device.startswith("cuda"):
            peak = torch.cuda.max_memory_allocated(config.device)
        else:
            # The system counts in batches: what grew by nothing may seem to have shrunk.
            peak = max(0, peak_memory_bytes() - before)
    return statistics.median(seconds[num_warm_up:]), peak


def num_warm_up_steps(config: RunConfig) -> int:
    """Everything is allocated after one step, and on CUDA recorded after a few more."""
    return 5 if config.device.startswith("cuda") else 1


def random_batch(config: RunConfig, number: int) -> Batch:
    """A batch of ids that need no data; the same for the same number."""
    generator = torch.Generator().manual_seed(number)
    shape = (config.batch_size, config.model.context_length + 1)
    ids = torch.randint(config.model.vocab_size, shape, generator=generator).to(config.device)
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    return Batch(number, inputs, targets, config.micro_batch)


def _describe_device(config: RunConfig, host_memory_bytes: int) -> Accelerator:
    if config.device == "cpu":
        return describe_cpu(config.num_threads or num_cores(), host_memory_bytes)
    name, num_bytes = device_name(config), host_memory_bytes
    if config.device.startswith("cuda"):
        num_bytes = torch.cuda.mem_get_info(config.device)[1]
    row = find_accelerator(name) or Accelerator(name, None, None, 0.0, num_bytes)
    return row._replace(memory_bytes=num_bytes)


def _seconds_left(costs: Costs, budget: TimeBudget, passed_seconds: float) -> float:
    return budget.seconds * (1.0 - costs.reserve) - passed_seconds


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


def _minutes(budget: TimeBudget) -> str:
    minutes = budget.seconds / 60
    return "1 minute" if minutes == 1 else f"{minutes:g} minutes"
