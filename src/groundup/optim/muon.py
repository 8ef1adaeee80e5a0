"""Muon: orthogonalized momentum for the matrices, AdamW for all else, in one optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from groundup.errors import ConfigError
from groundup.nn.kernels import HAS_TRITON, are_enabled
from groundup.optim.adamw import AdamW
from groundup.optim.base import Control, Optimizer, Parameters, Piece, gradients_of
from groundup.optim.orthogonalization import orthogonalize

_Shape: TypeAlias = tuple[int, ...]

# AdamW moves a weight by about this much of lr (root mean square); an orthogonal matrix of (rows,
# columns) has entries of 1 / √max(rows, columns). Scaled so, both kinds share one learning rate.
_MOVE_OF_ADAMW = 0.2

# Of a row's running mean of squares under `normalize_rows`, the share of a step.
_ROW_WEIGHT = 0.05


class Matrices(Protocol):
    """Where the matrices are that Muon is given, and who orthogonalizes them."""

    def shape(self, parameter: Tensor) -> _Shape:
        """The shape of the matrix that a parameter is, or that it is some rows of."""
        ...

    def orthogonalize(self, matrices: Tensor, shape: _Shape) -> Tensor:
        """Orthogonal matrices for a stack, or the same rows of them; `shape` is that of each."""
        ...


class WholeMatrices:
    """All of every matrix is here."""

    def shape(self, parameter: Tensor) -> _Shape:
        return tuple(parameter.shape)

    def orthogonalize(self, matrices: Tensor, shape: _Shape) -> Tensor:
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

    matrices: Matrices = WholeMatrices()
    """Another takes its place where several processes share the work."""

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
        defaults = {
            "kind": "muon",
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "betas": betas,
            "eps": eps,
        }
        Optimizer.__init__(self, params, defaults)
        for group in self.param_groups:
            for parameter in group["params"]:
                if group["kind"] == "muon" and parameter.ndim != 2:
                    raise ConfigError(
                        f"Muon moves matrices, but one parameter has shape "
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
            partial(self._way_of(alike), alike, shape, group, control)
            for (shape, _), alike in stacks.items()
        ]

    def _way_of(self, parameters: list[Tensor]) -> Callable[..., None]:
        """Our CUDA kernels take matrices with plain strides, all in float32."""
        if not HAS_TRITON or not are_enabled() or not parameters[0].is_cuda:
            return self._move
        tensors = [*parameters, *self._states(parameters, "momentum"), *gradients_of(parameters)]
        is_plain = all(one.dtype == torch.float32 and one.is_contiguous() for one in tensors)
        return self._move_fused if is_plain else self._move

    def _states(self, parameters: list[Tensor], key: str) -> list[Tensor]:
        return [self.state[parameter][key] for parameter in parameters]

    def _move(
        self, parameters: list[Tensor], shape: _Shape, group: dict[str, Any], control: Control
    ) -> None:
        """One step of matrices of one shape, stacked: few operations, whatever their number."""
        momenta = self._states(parameters, "momentum")
        before = torch.stack(momenta)
        gradients = torch.stack(gradients_of(parameters))
        if control.gradient_scale is not None:
            gradients.mul_(control.gradient_scale)
        momentum = torch.lerp(before, gradients, 1 - group["momentum"])
        ahead = gradients.lerp_(momentum, group["momentum"])
        directions = self.matrices.orthogonalize(ahead, shape).to(ahead.dtype)
        if self.normalize_rows:
            directions = self._with_even_rows(directions, parameters, max(shape), control.skip)
        directions *= group["lr"] * (_MOVE_OF_ADAMW * math.sqrt(max(shape)))
        decay = group["lr"] * group["weight_decay"]
        if control.skip is not None:
            # What comes of a gradient that is not finite must not meet an arithmetic operation.
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
        means = self._states(parameters, "row_means")
        before = torch.stack(means)
        after = torch.lerp(before, directions.square().mean(dim=-1), _ROW_WEIGHT)
        kept = after if skip is None else torch.where(skip.bool(), before, after)
        torch._foreach_copy_(means, kept.unbind())
        scales = (after.clamp(min=1e-20) * longest).rsqrt()
        return directions * scales.unsqueeze(-1)

    def _move_fused(
        self, parameters: list[Tensor], shape: _Shape, group: dict[str, Any], control: Control
    ) -> None:
        """The same in one pass over memory before the orthogonalization and one behind it."""
        from groundup.nn.kernels.cuda_train import muon as kernels

        def scalar(value: float | Tensor | None, default: float = 0.0) -> Tensor:
            like = parameters[0]
            value = default if value is None else value
            return value.to(like) if isinstance(value, Tensor) else like.new_full((), value)

        momenta = self._states(parameters, "momentum")
        scale, skips = scalar(control.gradient_scale, 1.0), scalar(control.skip)
        gradients = gradients_of(parameters)
        ahead = kernels.look_ahead(gradients, momenta, group["momentum"], scale, skips)
        directions = self.matrices.orthogonalize(ahead, shape)
        kernels.move(
            parameters,
            directions,
            scalar(group["lr"]),
            _MOVE_OF_ADAMW * math.sqrt(max(shape)),
            group["weight_decay"],
            skips,
            self._states(parameters, "row_means") if self.normalize_rows else None,
            _ROW_WEIGHT,
            max(shape),
        )
