"""Muon: orthogonalized momentum for the matrices, AdamW for all else, in one optimizer."""

import math
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from groundup.errors import ConfigError
from groundup.nn.kernels import can_run_on
from groundup.optim.adamw import AdamW
from groundup.optim.base import Control, Optimizer, Parameters, Piece, gradients_of
from groundup.optim.orthogonalization import orthogonalize

_Shape: TypeAlias = tuple[int, ...]

# The RMS of AdamW's updates is about 0.2 lr; an orthogonal matrix of (rows, columns) has entries of
# RMS 1 / √max(rows, columns). With this scale, both kinds share one learning rate.
_MOVE_OF_ADAMW = 0.2

# The weight of a step in the running second moment of a row (`normalize_rows`).
_ROW_WEIGHT = 0.05


class WholeMatrices:
    """Muon's matrices are whole on this rank; sharded training replaces this class."""

    def shape(self, parameter: Tensor) -> _Shape:
        """The shape of the whole matrix that a parameter is, or is some rows of."""
        return tuple(parameter.shape)

    def orthogonalize(self, matrices: Tensor, shape: _Shape) -> Tensor:
        """Orthogonalize a stack of matrices, or of their rows; `shape`: of each whole matrix."""
        return orthogonalize(matrices)


class Muon(AdamW):
    """A group of kind "muon" holds matrices G of (rows, columns), with M the momentum:

        M <- μ M + (1 - μ) G;    D = orthogonalize(μ M + (1 - μ) G)       (Nesterov's look ahead)
        θ <- θ - lr λ θ;         θ <- θ - lr · 0.2 √max(rows, columns) · D

    A group of kind "adamw" holds anything and moves as `AdamW` does, by `betas` and `eps`. Matrices
    of one shape are orthogonalized together. A matrix keeps M in `momentum`.

    momentum: μ.   weight_decay: λ.
    normalize_rows: let all rows of a matrix move alike. With v the mean of a row's D² over the last
        steps, kept in `row_means`, D / √(v max(rows, columns)) takes the place of D (NorMuon).
    """

    optimizer_name = "muon"
    divides_matrices = True

    matrices = WholeMatrices()

    def __init__(
        self,
        params: Parameters,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        *,
        normalize_rows: bool = False,
    ) -> None:
        self.normalize_rows = normalize_rows
        defaults = {"kind": "muon", "lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        Optimizer.__init__(self, params, defaults | {"betas": betas, "eps": eps})
        for group in self.param_groups:
            for parameter in group["params"]:
                if group["kind"] == "muon" and parameter.ndim != 2:
                    raise ConfigError(
                        f"Muon updates matrices, but one parameter has shape "
                        f'{tuple(parameter.shape)}: put it into a group of kind "adamw"'
                    )

    def _updates(
        self, parameters: list[Tensor], group: dict[str, Any], control: Control
    ) -> list[Piece]:
        if group["kind"] == "adamw":
            return super()._updates(parameters, group, control)
        stacks: dict[tuple[Any, ...], list[Tensor]] = {}
        for parameter in parameters:
            shape, state = self.matrices.shape(parameter), self.state[parameter]
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(parameter)
            if self.normalize_rows and "row_means" not in state:
                # What the rows of an orthogonal matrix have on average.
                state["row_means"] = parameter.new_full(parameter.shape[:1], 1 / max(shape))
            stacks.setdefault((shape, parameter.dtype), []).append(parameter)
        return [
            partial(self._move, alike, shape, group, control)
            for (shape, _), alike in stacks.items()
        ]

    def _move(
        self, parameters: list[Tensor], shape: _Shape, group: dict[str, Any], control: Control
    ) -> None:
        """One step of matrices of one shape, stacked: few operations, whatever their number."""
        momenta = [self.state[parameter]["momentum"] for parameter in parameters]
        before = torch.stack(momenta)
        gradients = torch.stack(gradients_of(parameters))
        if control.gradient_scale is not None:
            gradients.mul_(control.gradient_scale)
        momentum = torch.lerp(before, gradients, 1 - group["momentum"])
        ahead = gradients.lerp_(momentum, group["momentum"])
        # Our CUDA kernel takes half precision.
        half = ahead.bfloat16() if ahead.is_cuda and ahead.dtype == torch.float32 else ahead
        ahead = half if can_run_on(half) else ahead
        directions = self.matrices.orthogonalize(ahead, shape).to(momentum.dtype)
        if self.normalize_rows:
            directions = self._with_even_rows(directions, parameters, max(shape), control.skip)
        directions *= group["lr"] * (_MOVE_OF_ADAMW * math.sqrt(max(shape)))
        decay = group["lr"] * group["weight_decay"]
        if control.skip is not None:
            # `where`, because NaN times 0 is NaN.
            is_skipped = control.skip.bool()
            momentum = torch.where(is_skipped, before, momentum)
            directions = torch.where(is_skipped, 0.0, directions)
            decay = decay * (1 - control.skip)
        torch._foreach_copy_(momenta, momentum.unbind())
        torch._foreach_mul_(parameters, 1 - decay)
        torch._foreach_sub_(parameters, directions.unbind())

    def _with_even_rows(
        self, directions: Tensor, parameters: list[Tensor], longest: int, skip: Tensor | None
    ) -> Tensor:
        means = [self.state[parameter]["row_means"] for parameter in parameters]
        before = torch.stack(means)
        after = torch.lerp(before, directions.square().mean(dim=-1), _ROW_WEIGHT)
        kept = after if skip is None else torch.where(skip.bool(), before, after)
        torch._foreach_copy_(means, kept.unbind())
        scales = (after.clamp(min=1e-20) * longest).rsqrt()
        return directions * scales.unsqueeze(-1)
