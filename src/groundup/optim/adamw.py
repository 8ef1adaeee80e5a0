"""Adam with decoupled weight decay."""

from __future__ import annotations

from typing import Any, get_args

from torch import Tensor

from groundup.errors import check_choice
from groundup.optim.adamw_update import Kernels, adamw_update_
from groundup.optim.base import Optimizer, Parameters
from groundup.optim.checks import check_adamw_group


class AdamW(Optimizer):
    """Steps of a size near lr in each weight, whatever the size of its gradients.

    The formula is in `adamw_update`; `kernels` chooses it ("reference") or torch's one-pass kernel
    ("fused"). Each parameter keeps `step`, `exp_avg` and `exp_avg_sq`.
    """

    def __init__(
        self,
        params: Parameters,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        kernels: Kernels = "fused",
    ) -> None:
        check_choice("kernels", kernels, get_args(Kernels))
        self.kernels = kernels
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    def _check_group(self, group: dict[str, Any]) -> None:
        check_adamw_group(group)

    def _update(
        self,
        parameters: list[Tensor],
        group: dict[str, Any],
        gradient_scale: Tensor | None,
        skip: Tensor | None,
    ) -> None:
        states = [self.state[parameter] for parameter in parameters]
        adamw_update_(parameters, states, group, self.kernels, gradient_scale, skip)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "kernels": self.kernels}
