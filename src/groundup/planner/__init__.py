"""What a run costs before it runs: parameters, floating-point operations, memory. No torch."""

from groundup.planner.flops import training_flops_per_token
from groundup.planner.hardware import Accelerator, find_accelerator, peak_flops_per_second
from groundup.planner.parameters import count_parameters
from groundup.planner.plan import training_state_bytes, two_line_plan

__all__ = [
    "Accelerator",
    "count_parameters",
    "find_accelerator",
    "peak_flops_per_second",
    "training_flops_per_token",
    "training_state_bytes",
    "two_line_plan",
]
