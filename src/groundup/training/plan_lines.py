"""The plan that a run begins its log with: what it is, what it takes, and how long about."""

import torch

from groundup.planner import (
    Execution,
    describe_cpu,
    expected_duration,
    memory_line,
    time_line,
    two_line_plan,
)
from groundup.runs.config import RunConfig
from groundup.training.execution import device_name, planned_memory
from groundup.training.peak_rate import find_peak


def plan_lines(
    config: RunConfig, tokens_in_corpus: int, *, steps_done: int = 0, is_timed: bool = False
) -> list[str]:
    """Parameters, tokens and operations, memory, and time and price of the steps that are left.

    A run that is timed has measured its steps and said so: of its time nothing is guessed.
    """
    lines = two_line_plan(
        config.model,
        config.batch_size,
        config.num_steps,
        tokens_in_corpus=tokens_in_corpus,
        optimizer=config.optimizer.name,
    )
    lines.append(memory_line(planned_memory(config), config.sequences_in_memory, config.batch_size))
    steps_left = config.num_steps - steps_done
    peak = None if is_timed or steps_left < 1 else find_peak(config)
    if peak is not None:
        lines.append(_time_line(config, steps_left, peak))
    return lines


def _time_line(config: RunConfig, num_steps: int, peak_flops_per_second: float) -> str:
    execution = Execution.of(config.device, config.precision)
    precision: str = execution.precision
    if execution == ("cuda", "float32") and config.tf32:
        precision = "tf32"
    device = device_name(config)
    if execution.device == "cpu":
        device = describe_cpu(torch.get_num_threads(), 0).name
    duration = expected_duration(
        config.model,
        batch_size=config.batch_size,
        num_steps=num_steps,
        peak_flops_per_second=peak_flops_per_second,
        device=device,
        kind=execution.device,
        precision=precision,
    )
    return time_line(duration)
