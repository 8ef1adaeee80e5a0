"""Estimate a run in advance: parameters, FLOPs, memory, time and price. Does not import torch."""

from groundup.planner.hardware import Accelerator as Accelerator
from groundup.planner.hardware import describe_cpu as describe_cpu
from groundup.planner.hardware import find_accelerator as find_accelerator
from groundup.planner.hardware import get_accelerator as get_accelerator
from groundup.planner.hardware import peak_flops_per_second as peak_flops_per_second
from groundup.planner.memory import Execution as Execution
from groundup.planner.memory import MeasuredStep as MeasuredStep
from groundup.planner.memory import StepMemory as StepMemory
from groundup.planner.memory import step_memory as step_memory
from groundup.planner.parameters import check_model_memory as check_model_memory
from groundup.planner.parameters import count_parameters as count_parameters
from groundup.planner.parameters import forward_flops as forward_flops
from groundup.planner.parameters import step_flops as step_flops
from groundup.planner.parameters import training_flops_per_token as training_flops_per_token
from groundup.planner.plan import Plan as Plan
from groundup.planner.plan import make_plan as make_plan
