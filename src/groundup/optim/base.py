"""Base class of all optimizers: gradient scaling and skipping on the device, EMA of weights."""

import contextlib
import functools
import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor

# Tensors, (name, tensor) pairs or groups, as in torch.
Parameters: TypeAlias = Iterable[Any]
# A part of a step that may run concurrently with others.
Piece: TypeAlias = Callable[[], None]


class Control(NamedTuple):
    """The arguments of `Optimizer.step`, on the gradients' device."""

    gradient_scale: Tensor | None
    skip: Tensor | None


_Method = TypeVar("_Method", bound=Callable[..., Any])


def _unwrapped(method: _Method) -> _Method:
    """Without torch's wrapper, which imports the compiler: two seconds of startup."""
    inner: _Method = inspect.unwrap(method)
    return inner


class Optimizer(torch.optim.Optimizer):
    """A torch optimizer whose step takes two tensors, so that it needs no device synchronization.

    All parameters are on one device. A step may overwrite `.grad`.
    """

    average_decay: float | Tensor | None = None
    """The decay d of an EMA in each parameter's state: average <- d average + (1 - d) θ."""

    state_dict = _unwrapped(torch.optim.Optimizer.state_dict)
    zero_grad = _unwrapped(torch.optim.Optimizer.zero_grad)
    add_param_group = _unwrapped(torch.optim.Optimizer.add_param_group)

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    @torch.no_grad()
    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        gradient_scale: Tensor | None = None,
        skip: Tensor | None = None,
    ) -> Any:
        """Update every parameter that has a gradient.

        gradient_scale: factor on all gradients (clipping without an extra pass).
        skip: 1 leaves weights and state unchanged, bit for bit; 0 is an ordinary step.
        """
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        groups = [
            (group, [one for one in group["params"] if one.grad is not None])
            for group in self.param_groups
        ]
        learning = [one for _, here in groups for one in here]
        if not learning:
            return result
        device = learning[0].device
        control = Control(
            None if gradient_scale is None else gradient_scale.to(device, torch.float32),
            None if skip is None else skip.to(device, torch.float32),
        )
        if self.average_decay is not None:
            for one in learning:
                if "average" not in self.state[one]:
                    self.state[one]["average"] = one.clone()
        pieces: list[Piece] = []
        for group, here in groups:
            pieces += self._updates(here, group, control) if here else []
        run_side_by_side(device, pieces)
        if self.average_decay is not None:
            averages = [self.state[one]["average"] for one in learning]
            moves = torch._foreach_sub(learning, averages)
            taken = 1.0 if control.skip is None else 1 - control.skip
            torch._foreach_mul_(moves, (1 - self.average_decay) * taken)
            torch._foreach_add_(averages, moves)
        return result

    @torch.no_grad()
    def exchange_averages(self) -> None:
        """Swap the parameters with their averages."""
        for parameter, state in self.state.items():
            if "average" in state:
                latest = parameter.clone()
                parameter.copy_(state["average"])
                state["average"].copy_(latest)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in torch, but with copies of the tensors, and step counts on the parameters'
        device."""
        _unwrapped(torch.optim.Optimizer.load_state_dict)(self, state_dict)
        foreign = {id(value) for state in state_dict["state"].values() for value in state.values()}
        for parameter, state in self.state.items():
            for key, value in state.items():
                if isinstance(value, Tensor):
                    state[key] = value.to(parameter.device, copy=id(value) in foreign)

    @abstractmethod
    def _updates(
        self, parameters: list[Tensor], group: dict[str, Any], control: Control
    ) -> list[Piece]:
        """One step of a group's parameters that have a gradient."""


class ForeignOptimizer(Optimizer):
    """Wraps any torch optimizer, such as one given to `train(config, optimizer=…)`.

    It shares the groups and state; the schedule scales the learning rates it was made with.
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
        """Synchronizes with the device if `skip` is given."""
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
        raise NotImplementedError("the inner optimizer updates the weights")


def gradients_of(parameters: list[Tensor], gradient_scale: Tensor | None = None) -> list[Tensor]:
    """The gradients; with a scale, new tensors multiplied by it."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if gradient_scale is None:
        return gradients
    return list(torch._foreach_mul(gradients, gradient_scale))


@contextlib.contextmanager
def unchanged_where(skip: Tensor | None, tensors: list[Tensor]) -> Iterator[None]:
    """Restore the tensors if `skip` is 1 on the device, whatever happens inside."""
    before = [] if skip is None else [tensor.clone() for tensor in tensors]
    yield
    if skip is not None:
        for tensor, old in zip(tensors, before, strict=True):
            torch.where(skip.bool(), old, tensor, out=tensor)


def run_side_by_side(device: torch.device, pieces: Sequence[Piece]) -> None:
    """Run independent pieces; on CUDA each on its own stream, because none fills the GPU.

    The current stream waits for all of them; in a CUDA graph they become branches. The pieces'
    arguments must live until all are done.
    """
    if device.type != "cuda":
        for piece in pieces:
            piece()
        return
    current = torch.cuda.current_stream(device)
    streams = [_side_stream(device, index) for index in range(len(pieces) - 1)]
    for stream, piece in zip([*streams, current], pieces, strict=False):
        if stream is not current:
            stream.wait_stream(current)
        with torch.cuda.stream(stream):
            piece()
    for stream in streams:
        current.wait_stream(stream)


@functools.cache
def _side_stream(device: torch.device, index: int) -> torch.cuda.Stream:
    """Cached, so that every step reuses the stream's memory."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
