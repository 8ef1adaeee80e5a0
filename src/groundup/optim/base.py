"""What all our optimizers share: checked groups, and a step that scales or skips on the device.

The rule by which weights move is the subclass's.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor

from groundup.errors import ConfigError

# Tensors, (name, tensor) pairs or groups, as torch takes them.
Parameters: TypeAlias = Iterable[Any]


class Optimizer(torch.optim.Optimizer):
    """A torch optimizer whose step takes two tensors, so that the device never waits for the host:

        gradient_scale   gradients count times this (clipping without a pass of its own)
        skip             1 leaves weights and state as they are, to the bit; 0 is an ordinary step

    A step may write the scaled gradients into `.grad`: drop them afterwards.
    """

    def __init__(self, params: Parameters, defaults: dict[str, Any]) -> None:
        params = list(params)
        if not params:
            raise ConfigError(f"{type(self).__name__} was given no parameters to learn")
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        try:
            self._check_group(self.param_groups[-1])
        except ConfigError:
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        gradient_scale: Tensor | None = None,
        skip: Tensor | None = None,
    ) -> Any:
        """Move every parameter that has a gradient; returns what `closure`, called first, gave."""
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        for group in self.param_groups:
            learning = [one for one in group["params"] if one.grad is not None]
            for device in dict.fromkeys(one.device for one in learning):
                self._update(
                    [one for one in learning if one.device == device],
                    group,
                    None if gradient_scale is None else gradient_scale.to(device, torch.float32),
                    None if skip is None else skip.to(device, torch.float32),
                )
        return result

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch does, but with tensors of its own, and step counts beside their parameters."""
        super().load_state_dict(state_dict)
        foreign = {id(value) for state in state_dict["state"].values() for value in state.values()}
        for parameter, state in self.state.items():
            for key, value in state.items():
                if isinstance(value, Tensor):
                    device = parameter.device
                    state[key] = value.to(device, copy=id(value) in foreign)

    @abstractmethod
    def _check_group(self, group: dict[str, Any]) -> None:
        """Raise ConfigError for a setting that cannot be used."""

    @abstractmethod
    def _update(
        self,
        parameters: list[Tensor],
        group: dict[str, Any],
        gradient_scale: Tensor | None,
        skip: Tensor | None,
    ) -> None:
        """One step of parameters that all have a gradient and lie on one device."""


def gradients_of(parameters: list[Tensor], gradient_scale: Tensor | None) -> list[Tensor]:
    """The gradients, times the scale if there is one (in new tensors then)."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if gradient_scale is None:
        return gradients
    return list(torch._foreach_mul(gradients, gradient_scale))


@contextlib.contextmanager
def unchanged_where(skip: Tensor | None, tensors: list[Tensor]) -> Iterator[None]:
    """Put the tensors back as they were, if `skip` is 1 on the device, whatever happens inside."""
    if skip is None:
        yield
        return
    before = [tensor.clone() for tensor in tensors]
    yield
    for tensor, old in zip(tensors, before, strict=True):
        torch.where(skip.bool(), old, tensor, out=tensor)
