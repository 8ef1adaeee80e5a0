"""Adam with decoupled weight decay: one fused kernel where there is one, else the formula."""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from groundup.nn import kernels
from groundup.optim import base


class AdamW(base.Optimizer):
    """With g the gradient, t the step from 1 on, λ the weight decay:

        θ <- θ - lr λ θ
        m <- β₁ m + (1 - β₁) g;    v <- β₂ v + (1 - β₂) g²
        θ <- θ - lr · (m / (1 - β₁ᵗ)) / (√(v / (1 - β₂ᵗ)) + ε)

    Each parameter keeps t in `step`, in float32, and m and v in `exp_avg` and `exp_avg_sq`.
    """

    optimizer_name = "adamw"

    def __init__(
        self,
        params: base.Parameters,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    def _updates(
        self, parameters: list[Tensor], group: dict[str, Any], control: base.Control
    ) -> list[base.Piece]:
        batches: dict[tuple[torch.dtype, bool], list[Tensor]] = {}
        for parameter in parameters:
            state = self.state[parameter]
            if "step" not in state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
            fused = kernels.are_enabled() and _can_be_fused(parameter)
            batches.setdefault((parameter.dtype, fused), []).append(parameter)
        pieces: list[base.Piece] = []
        for (_, fused), batch in batches.items():
            states, keys = [self.state[one] for one in batch], ("step", "exp_avg", "exp_avg_sq")
            columns = [[state[key] for state in states] for key in keys]
            update = _fused_update_ if fused else _formula_update_
            pieces.append(partial(update, batch, columns, group, control))
        return pieces


def _formula_update_(
    parameters: list[Tensor],
    columns: list[list[Tensor]],
    group: dict[str, Any],
    control: base.Control,
) -> None:
    lr, (beta1, beta2), eps = group["lr"], group["betas"], group["eps"]
    steps, averages, squares = columns
    gradients = base.gradients_of(parameters, control.gradient_scale)
    with base.unchanged_where(control.skip, [*parameters, *steps, *averages, *squares]):
        torch._foreach_add_(steps, 1)
        torch._foreach_mul_(parameters, 1 - lr * group["weight_decay"])
        torch._foreach_lerp_(averages, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)

        wide = torch.promote_types(parameters[0].dtype, torch.float32)
        steps = [step.to(wide) for step in steps]
        denominators = torch._foreach_sqrt(squares)
        torch._foreach_div_(denominators, [_correction(beta2, step).sqrt() for step in steps])
        torch._foreach_add_(denominators, eps)
        moves = torch._foreach_div(averages, denominators)
        torch._foreach_mul_(moves, [lr / _correction(beta1, step) for step in steps])
        torch._foreach_sub_(parameters, moves)


def _fused_update_(
    parameters: list[Tensor],
    columns: list[list[Tensor]],
    group: dict[str, Any],
    control: base.Control,
) -> None:
    """The same in one pass over memory by torch's kernel, which divides by its scale."""
    steps, averages, squares = columns
    torch._foreach_add_(steps, 1)
    torch._fused_adamw_(
        parameters,
        base.gradients_of(parameters),
        averages,
        squares,
        [],
        steps,
        lr=group["lr"],
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
        grad_scale=None if control.gradient_scale is None else control.gradient_scale.reciprocal(),
        found_inf=control.skip,
    )
    if control.skip is not None:
        torch._foreach_sub_(steps, [control.skip] * len(steps))


def _correction(beta: float, step: Tensor) -> Tensor:
    """1 - βᵗ; in float32 the plain difference would lose most of its digits for small t."""
    return -torch.expm1(step * (math.log(beta) if beta else -math.inf))


def _can_be_fused(parameter: Tensor) -> bool:
    """Whether torch's kernel supports the device and strides."""
    gradient = parameter.grad
    is_plain = gradient is not None and gradient.is_contiguous() and parameter.is_contiguous()
    return is_plain and parameter.device.type in ("cpu", "cuda")
