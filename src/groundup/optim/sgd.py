"""Stochastic gradient descent with a 1/√t learning rate."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from groundup.optim import base


class SGD(base.Optimizer):
    """θ <- θ - lr / √(t + 1) · g, with t = 0, 1, … the steps a parameter has taken."""

    optimizer_name = "sgd"

    def __init__(self, params: base.Parameters, lr: float | Tensor = 1e-3) -> None:
        super().__init__(params, {"lr": lr})

    def _updates(
        self, parameters: list[Tensor], group: dict[str, Any], control: base.Control
    ) -> list[base.Piece]:
        for parameter in parameters:
            if "step" not in self.state[parameter]:
                self.state[parameter]["step"] = torch.zeros((), device=parameter.device)
        return [partial(self._move, parameters, group["lr"], control)]

    def _move(self, parameters: list[Tensor], lr: float | Tensor, control: base.Control) -> None:
        steps = [self.state[parameter]["step"] for parameter in parameters]
        gradients = base.gradients_of(parameters, control.gradient_scale)
        with base.unchanged_where(control.skip, [*parameters, *steps]):
            for parameter, gradient, step in zip(parameters, gradients, steps, strict=True):
                wide = torch.promote_types(parameter.dtype, torch.float32)
                parameter.sub_(gradient * (lr / (step.to(wide) + 1).sqrt()))
            torch._foreach_add_(steps, 1)
