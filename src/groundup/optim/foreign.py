"""Any torch optimizer in place of ours: what a program gives to `train(config, optimizer=…)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from groundup.optim.base import Optimizer


class ForeignOptimizer(Optimizer):
    """Steps an optimizer that knows neither clipping nor skipping, and shares its groups and state.

    The learning rates it was made with are its maxima, which the schedule scales.
    """

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        for group in inner.param_groups:
            group.setdefault("initial_lr", group["lr"])
        super().__init__(inner.param_groups, inner.defaults)
        self.inner = inner
        self.param_groups, self.state = inner.param_groups, inner.state

    @torch.no_grad()
    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        gradient_scale: Tensor | None = None,
        skip: Tensor | None = None,
    ) -> Any:
        """The inner step; waits for the device to say whether to skip it."""
        if skip is not None and bool(skip):
            return None
        if gradient_scale is not None:
            parameters = (one for group in self.param_groups for one in group["params"])
            torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], gradient_scale)
        return self.inner.step(closure)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.inner.load_state_dict(state_dict)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state

    def _updates(self, parameters: Any, group: Any, control: Any) -> Any:
        """None: the inner optimizer moves the weights."""
        return []
