"""What a run costs before it runs: parameters, operations, memory, time, money. No torch."""

from groundup.planner.activations import Execution
from groundup.planner.duration import expected_duration, time_line
from groundup.planner.flops import forward_flops, step_flops, training_flops_per_token
from groundup.planner.hardware import (
    Accelerator,
    describe_cpu,
    find_accelerator,
    get_accelerator,
    peak_flops_per_second,
)
from groundup.planner.memory import StepKind, TrainingMemory, pick_micro_batch, training_memory
from groundup.planner.optimizer_memory import training_state_bytes
from groundup.planner.parameters import check_holdable, count_parameters
from groundup.planner.plan import Plan, make_plan, memory_line, two_line_plan

__all__ = [
    "Accelerator",
    "Execution",
    "Plan",
    "StepKind",
    "TrainingMemory",
    "check_holdable",
    "count_parameters",
    "describe_cpu",
    "expected_duration",
    "find_accelerator",
    "forward_flops",
    "get_accelerator",
    "make_plan",
    "memory_line",
    "peak_flops_per_second",
    "pick_micro_batch",
    "step_flops",
    "time_line",
    "training_flops_per_token",
    "training_memory",
    "training_state_bytes",
    "two_line_plan",
]
