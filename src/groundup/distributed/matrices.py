"""Distributed orthogonalization for Muon: each matrix is orthogonalized once, by one rank.

Separate from `sharding`, whose imports take two seconds.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, distributed

from groundup.distributed.process_group import ProcessGroup, lost_rank_errors
from groundup.optim.muon import WholeMatrices
from groundup.optim.orthogonalization import orthogonalize


class ReplicatedMatrices(WholeMatrices):
    """For replicated weights: every rank has all matrices."""

    def __init__(
        self, ranks: ProcessGroup, orthogonalize: Callable[[Tensor], Tensor] = orthogonalize
    ) -> None:
        """orthogonalize: takes a stack of matrices; `orthogonalize_each` makes the result bitwise
        independent of the world size."""
        self._ranks = ranks
        self._orthogonalize = orthogonalize

    def orthogonalize(self, matrices: Tensor, shape: tuple[int, ...]) -> Tensor:
        count, size = _per_rank(len(matrices), self._ranks.size), self._ranks.size
        own = matrices[count * self._ranks.rank :][:count]
        # Contiguous for any number of matrices: the order of sums over rows depends on the layout.
        result = _padded(self._orthogonalize(own), count).contiguous()
        if size == 1:
            return result
        gathered = result.new_empty(size, count, *shape)
        with lost_rank_errors():
            distributed.all_gather(list(gathered), result)
        return gathered.flatten(0, 1)[: len(matrices)]


class ShardedMatrices(WholeMatrices):
    """For weights sharded by FSDP: every rank has some rows of each matrix, perhaps none."""

    def __init__(
        self, shapes: Mapping[Tensor, tuple[int, ...]], group: distributed.ProcessGroup
    ) -> None:
        """shapes: the full shape of each parameter. group: the ranks that it is sharded over."""
        self._shapes = shapes
        self._group = group

    def shape(self, parameter: Tensor) -> tuple[int, ...]:
        return self._shapes[parameter]

    def orthogonalize(self, matrices: Tensor, shape: tuple[int, ...]) -> Tensor:
        size, rows = self._group.size(), shape[0]
        count, num_local = _per_rank(len(matrices), size), matrices.shape[1]
        # (rank that orthogonalizes it, matrix, rows of this rank, columns)
        parts = _padded(_padded(matrices, size * count), _per_rank(rows, size), dim=1)
        parts = self._exchange(parts.reshape(size, count, *parts.shape[1:]))
        # (matrix, rows, columns) of the matrices that this rank orthogonalizes
        own = parts.transpose(0, 1).flatten(1, 2)
        num_own = max(0, min(count, len(matrices) - count * self._group.rank()))
        result = orthogonalize(own[:num_own, :rows])
        result = _padded(_padded(result, count), own.shape[1], dim=1)
        parts = self._exchange(result.reshape(count, size, -1, shape[1]).transpose(0, 1))
        return parts.flatten(0, 1)[: len(matrices), :num_local]

    def _exchange(self, parts: Tensor) -> Tensor:
        """All-to-all: send part i to rank i."""
        received = torch.empty_like(parts, memory_format=torch.contiguous_format)
        with lost_rank_errors():
            distributed.all_to_all_single(received, parts.contiguous(), group=self._group)
        return received


def _per_rank(num_things: int, size: int) -> int:
    return -(-num_things // size)


def _padded(tensor: Tensor, length: int, dim: int = 0) -> Tensor:
    """Zero-pad a dimension at its end to the given length."""
    missing = list(tensor.shape)
    missing[dim] = length - tensor.shape[dim]
    return torch.cat([tensor, tensor.new_zeros(missing)], dim) if missing[dim] else tensor
