"""What all our optimizers share: checked groups, and a step that scales or skips on the device.

The rule by which weights move is the subclass's.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from groundup.errors import ConfigError
from groundup.optim.side_by_side import run_side_by_side

# Tensors, (name, tensor) pairs or groups, as torch takes them.
Parameters: TypeAlias = Iterable[Any]


_Method = TypeVar("_Method", bound=Callable[..., Any])


def _unwrapped(method: _Method) -> _Method:
    """Without torch's wrapper, which keeps the compiler out and imports it for that: two seconds at
    the start of every run."""
    inner: _Method = inspect.unwrap(method)
    return inner


class Optimizer(torch.optim.Optimizer):
    """A torch optimizer whose step takes two tensors, so that the device never waits for the host.

    A step may write the scaled gradients into `.grad`: drop them afterwards.
    """

    average_decay: float | None = None
    """If given, each parameter has an average: average <- d average + (1 - d) θ after each step."""

    is_moving: bool = False
    """Whether a step has begun and not ended, which an error leaves so: some weights have moved."""

    def __init__(self, params: Parameters, defaults: dict[str, Any]) -> None:
        params = list(params)
        if not params:
            raise ConfigError(f"{type(self).__name__} was given no parameters to learn")
        super().__init__(params, defaults)

    state_dict = _unwrapped(torch.optim.Optimizer.state_dict)
    zero_grad = _unwrapped(torch.optim.Optimizer.zero_grad)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        _unwrapped(torch.optim.Optimizer.add_param_group)(self, param_group)
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
        """Move every parameter that has a gradient.

        closure: called first; what it gave is returned.
        gradient_scale: factor on all gradients (clipping without a pass of its own).
        skip: 1 leaves weights and state as they are, to the bit; 0 is an ordinary step.
        """
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        parts: dict[torch.device, list[tuple[dict[str, Any], list[Tensor]]]] = {}
        for group in self.param_groups:
            learning = [one for one in group["params"] if one.grad is not None]
            for device in dict.fromkeys(one.device for one in learning):
                here = [one for one in learning if one.device == device]
                parts.setdefault(device, []).append((group, here))
        self.is_moving = True
        for device, groups in parts.items():
            scale = None if gradient_scale is None else gradient_scale.to(device, torch.float32)
            skips = None if skip is None else skip.to(device, torch.float32)
            if self.average_decay is not None:
                for one in (one for _, here in groups for one in here):
                    if "average" not in self.state[one]:
                        self.state[one]["average"] = one.clone()
            pieces: list[Callable[[], None]] = []
            for group, here in groups:
                pieces += self._updates(here, group, scale, skips)
            run_side_by_side(device, pieces)
            if self.average_decay is not None:
                for _, here in groups:
                    self._average(here, self.average_decay, skips)
        self.is_moving = False
        return result

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "average_decay": self.average_decay}

    @torch.no_grad()
    def exchange_averages(self) -> None:
        """Let every parameter that has an average change places with it."""
        for parameter, state in self.state.items():
            if "average" in state:
                latest = parameter.clone()
                parameter.copy_(state["average"])
                state["average"].copy_(latest)

    def _average(self, parameters: list[Tensor], decay: float, skip: Tensor | None) -> None:
        averages = [self.state[parameter]["average"] for parameter in parameters]
        moves = torch._foreach_sub(parameters, averages)
        torch._foreach_mul_(moves, 1 - decay if skip is None else (1 - decay) * (1 - skip))
        torch._foreach_add_(averages, moves)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch does, but with tensors of its own, and step counts beside their parameters."""
        _unwrapped(torch.optim.Optimizer.load_state_dict)(self, state_dict)
        foreign = {id(value) for state in state_dict["state"].values() for value in state.values()}
        for parameter, state in self.state.items():
            for key, value in state.items():
                if isinstance(value, Tensor):
                    device = parameter.device
                    state[key] = value.to(device, copy=id(value) in foreign)

    def _check_group(self, group: dict[str, Any]) -> None:
        """Raise ConfigError for a setting that cannot be used."""
        check_settings(group)

    @abstractmethod
    def _updates(
        self,
        parameters: list[Tensor],
        group: dict[str, Any],
        gradient_scale: Tensor | None,
        skip: Tensor | None,
    ) -> list[Callable[[], None]]:
        """One step of parameters that all have a gradient and lie on one device, in pieces that may
        run side by side."""


def check_settings(group: Mapping[str, Any]) -> None:
    """Refuse numbers of a group that no optimizer can use.

    A learning rate in a tensor, whose value only the device knows, is trusted.
    """
    if not isinstance(group["lr"], Tensor):
        _check_number("lr, the learning rate,", group["lr"])
    if "weight_decay" in group:
        _check_number("weight_decay", group["weight_decay"])
    if "momentum" in group:
        _check_number("momentum", group["momentum"], below=1)
    if "betas" in group:
        betas = group["betas"]
        if not isinstance(betas, Sequence) or len(betas) != 2:
            raise ConfigError(f"betas must be two numbers, such as (0.9, 0.95), got {betas!r}")
        for index, beta in enumerate(betas):
            _check_number(f"betas[{index}]", beta, below=1)
    if "eps" in group:
        _check_number("eps", group["eps"])
        if group["eps"] == 0:
            raise ConfigError("eps must be positive, got 0: it keeps 0 / 0 out of the weights")


def _check_number(name: str, value: Any, below: float = math.inf) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name} must be a number, got {value!r}")
    if not 0 <= value < below:
        bound = "finite" if below == math.inf else f"below {below}"
        raise ConfigError(f"{name} must be at least 0 and {bound}, got {value}")


def gradients_of(parameters: list[Tensor], gradient_scale: Tensor | None = None) -> list[Tensor]:
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
