"""What a run costs before it runs: parameters, operations, memory, time, money. No torch."""

from groundup.planner.duration import expected_duration, time_line
from groundup.planner.flops import forward_flops, step_flops, training_flops_per_token
from groundup.planner.hardware import (
    Accelerator,
    describe_cpu,
    find_accelerator,
    get_accelerator,
    peak_flops_per_second,
)
from groundup.planner.memory import (
    Execution,
    MeasuredStep,
    StepMemory,
    choose_micro_batch,
    memory_line,
    memory_options,
    step_memory,
)
from groundup.planner.parameters import check_holdable, count_parameters
from groundup.planner.plan import Plan, make_plan, two_line_plan

__all__ = [
    "Accelerator",
    "Execution",
    "MeasuredStep",
    "Plan",
    "StepMemory",
    "check_holdable",
    "choose_micro_batch",
    "count_parameters",
    "describe_cpu",
    "expected_duration",
    "find_accelerator",
    "forward_flops",
    "get_accelerator",
    "make_plan",
    "memory_line",
    "memory_options",
    "peak_flops_per_second",
    "step_flops",
    "step_memory",
    "time_line",
    "training_flops_per_token",
    "two_line_plan",
]
