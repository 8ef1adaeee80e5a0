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

# RMS of AdamW's updates, as a multiple of lr. The entries of an orthogonal matrix have an RMS of
# 1 / √max(rows, columns). Scaled to the same RMS, both kinds can share one learning rate.
_ADAMW_RMS = 0.2

# Weight of a step in the running second moment of a row (`normalize_rows`).
_ROW_WEIGHT = 0.05


class WholeMatrices:
    """Matrices that are not sharded; sharded training replaces this class."""

    def shape(self, parameter: Tensor) -> _Shape:
        """The shape of the unsharded matrix."""
        return tuple(parameter.shape)

    def orthogonalize(self, matrices: Tensor, shape: _Shape) -> Tensor:
        """Orthogonalize a stack of matrices or shards; `shape`: of each unsharded matrix."""
        return orthogonalize(matrices)


class Muon(AdamW):
    """Groups of kind "muon" contain matrices; with gradient G (rows, columns) and momentum M:

        M <- μ M + (1 - μ) G;    D = orthogonalize(μ M + (1 - μ) G)       (Nesterov's look ahead)
        θ <- θ - lr λ θ;         θ <- θ - lr · 0.2 √max(rows, columns) · D

    Groups of kind "adamw" contain any parameters, updated as in `AdamW` with `betas` and `eps`.
    Matrices of the same shape are orthogonalized together. The state `momentum` is M.

    momentum: μ.   weight_decay: λ.
    normalize_rows: use D / √(v max(rows, columns)) instead of D, where v, the running mean of a
        row's D², is the state `row_means`: all rows then get updates of equal size (NorMuon).
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
                # The mean square of an orthogonal matrix's entries.
                state["row_means"] = parameter.new_full(parameter.shape[:1], 1 / max(shape))
            stacks.setdefault((shape, parameter.dtype), []).append(parameter)
        return [
            partial(self._move, alike, shape, group, control)
            for (shape, _), alike in stacks.items()
        ]

    def _move(
        self, parameters: list[Tensor], shape: _Shape, group: dict[str, Any], control: Control
    ) -> None:
        """Update matrices of one shape, stacked, with few operations."""
        momenta = [self.state[parameter]["momentum"] for parameter in parameters]
        before = torch.stack(momenta)
        gradients = torch.stack(gradients_of(parameters))
        if control.gradient_scale is not None:
            gradients.mul_(control.gradient_scale)
        momentum = torch.lerp(before, gradients, 1 - group["momentum"])
        ahead = gradients.lerp_(momentum, group["momentum"])
        # Our CUDA kernel needs bfloat16.
        half = ahead.bfloat16() if ahead.is_cuda and ahead.dtype == torch.float32 else ahead
        ahead = half if can_run_on(half) else ahead
        directions = self.matrices.orthogonalize(ahead, shape).to(momentum.dtype)
        if self.normalize_rows:
            directions = self._with_even_rows(directions, parameters, max(shape), control.skip)
        directions *= group["lr"] * (_ADAMW_RMS * math.sqrt(max(shape)))
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
