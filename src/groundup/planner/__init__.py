"""What a run costs before it runs: parameters, operations, memory, time, money. No torch."""

from groundup.planner.hardware import (
    Accelerator,
    describe_cpu,
    find_accelerator,
    get_accelerator,
    peak_flops_per_second,
)
from groundup.planner.memory import Execution, MeasuredStep, StepMemory, step_memory
from groundup.planner.parameters import (
    check_holdable,
    count_parameters,
    forward_flops,
    step_flops,
    training_flops_per_token,
)
from groundup.planner.plan import Plan, make_plan

__all__ = [
    "Accelerator",
    "Execution",
    "MeasuredStep",
    "Plan",
    "StepMemory",
    "check_holdable",
    "count_parameters",
    "describe_cpu",
    "find_accelerator",
    "forward_flops",
    "get_accelerator",
    "make_plan",
    "peak_flops_per_second",
    "step_flops",
    "step_memory",
    "training_flops_per_token",
]
