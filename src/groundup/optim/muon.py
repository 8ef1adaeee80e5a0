"""Muon: orthogonalized momentum for the matrices, AdamW for all else, in one optimizer."""

from __future__ import annotations

import math
from typing import Any, get_args

import torch
from torch import Tensor

from groundup.errors import ConfigError, check_choice
from groundup.nn.limits import Kernels
from groundup.optim.adamw import AdamW
from groundup.optim.base import Optimizer, Parameters, gradients_of, unchanged_where
from groundup.optim.orthogonalization import orthogonalize

# AdamW moves a weight by about this much of lr (root mean square); an orthogonal matrix of (rows,
# columns) has entries of 1 / √max(rows, columns). Scaled so, both kinds share one learning rate.
_MOVE_OF_ADAMW = 0.2


class Muon(AdamW):
    """A group of kind "muon" holds matrices G of (rows, columns), with M the momentum:

        M <- μ M + (1 - μ) G;    D = orthogonalize(μ M + (1 - μ) G)       (Nesterov's look ahead)
        θ <- θ - lr λ θ;         θ <- θ - lr · 0.2 √max(rows, columns) · D

    A group of kind "adamw" holds anything and moves as `AdamW` does, by `betas`, `eps` and
    `kernels`. Matrices of one shape, or of its transpose, are orthogonalized together. A matrix
    keeps M in `momentum`.

    momentum: μ.   weight_decay: λ.   num_orthogonalization_steps: see `orthogonalize`.
    """

    def __init__(
        self,
        params: Parameters,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        *,
        num_orthogonalization_steps: int = 5,
        kernels: Kernels = "fused",
    ) -> None:
        check_choice("kernels", kernels, get_args(Kernels))
        if num_orthogonalization_steps < 1:
            raise ConfigError(
                f"num_orthogonalization_steps must be at least 1, got {num_orthogonalization_steps}"
            )
        self.num_orthogonalization_steps = num_orthogonalization_steps
        self.kernels = kernels
        defaults = {
            "kind": "muon",
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "betas": betas,
            "eps": eps,
        }
        Optimizer.__init__(self, params, defaults)

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        if group["kind"] not in ("muon", "adamw"):
            raise ConfigError(f"a group's kind must be muon or adamw, got {group['kind']!r}")
        for parameter in group["params"]:
            if group["kind"] == "muon" and parameter.ndim != 2:
                raise ConfigError(
                    f"Muon moves matrices, but one parameter has shape {tuple(parameter.shape)}: "
                    f'put it into a group of kind "adamw"'
                )

    def _update(
        self,
        parameters: list[Tensor],
        group: dict[str, Any],
        gradient_scale: Tensor | None,
        skip: Tensor | None,
    ) -> None:
        if group["kind"] == "adamw":
            super()._update(parameters, group, gradient_scale, skip)
            return
        states = [self.state[parameter] for parameter in parameters]
        for parameter, state in zip(parameters, states, strict=True):
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(parameter)
        momenta = [state["momentum"] for state in states]
        gradients = gradients_of(parameters, gradient_scale)
        with unchanged_where(skip, [*parameters, *momenta]):
            torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
            ahead = torch._foreach_lerp(gradients, momenta, group["momentum"])
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
            for alike in _same_shapes(parameters):
                self._move([parameters[i] for i in alike], [ahead[i] for i in alike], group["lr"])

    def _move(self, parameters: list[Tensor], ahead: list[Tensor], lr: float | Tensor) -> None:
        """Orthogonalize matrices of one shape in one batch, tall ones transposed, and apply."""
        wide = torch.stack([_wide(matrix) for matrix in ahead])
        directions = orthogonalize(wide, self.num_orthogonalization_steps).to(wide.dtype)
        directions.mul_(lr * (_MOVE_OF_ADAMW * math.sqrt(wide.shape[-1])))
        for parameter, direction in zip(parameters, directions, strict=True):
            _wide(parameter).sub_(direction)

    def __getstate__(self) -> dict[str, Any]:
        own = {"num_orthogonalization_steps": self.num_orthogonalization_steps}
        return {**super().__getstate__(), **own}


def _wide(matrix: Tensor) -> Tensor:
    """The matrix with its longer side along the rows: itself, or its transpose."""
    return matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT


def _same_shapes(matrices: list[Tensor]) -> list[list[int]]:
    """The indices of matrices that can be stacked once tall ones are transposed."""
    batches: dict[tuple[object, ...], list[int]] = {}
    for index, matrix in enumerate(matrices):
        batches.setdefault((*sorted(matrix.shape), matrix.dtype), []).append(index)
    return list(batches.values())
