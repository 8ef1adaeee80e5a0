"""How the ranks share what Muon does to matrices: each is orthogonalized once, by one of them.

It leaves the cutting of weights to `sharding`, whose imports take two seconds.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, distributed

from groundup.distributed.process_group import ProcessGroup, lost_ranks_named
from groundup.optim.muon import WholeMatrices
from groundup.optim.orthogonalization import orthogonalize


class CopiedMatrices(WholeMatrices):
    """Every rank has all matrices."""

    def __init__(
        self, ranks: ProcessGroup, orthogonalize: Callable[[Tensor], Tensor] = orthogonalize
    ) -> None:
        """orthogonalize: of a stack; `orthogonalize_each` gives the same bits on any world size."""
        self._ranks = ranks
        self._orthogonalize = orthogonalize

    def orthogonalize(self, matrices: Tensor, shape: tuple[int, ...]) -> Tensor:
        count, size = _per_rank(len(matrices), self._ranks.size), self._ranks.size
        own = matrices[count * self._ranks.rank :][:count]
        # In one order of memory however many there are: sums over rows depend on it.
        result = _padded(self._orthogonalize(own), count).contiguous()
        if size == 1:
            return result
        gathered = result.new_empty(size, count, *shape)
        with lost_ranks_named():
            distributed.all_gather(list(gathered), result)
        return gathered.flatten(0, 1)[: len(matrices)]


class ShardedMatrices(WholeMatrices):
    """Every rank has some rows of each matrix, as `sharding` cuts them: as many but the last."""

    def __init__(
        self, shapes: Mapping[Tensor, tuple[int, ...]], group: distributed.ProcessGroup
    ) -> None:
        """shapes: of the matrix that each parameter is some rows of; group: the ranks it is cut
        over."""
        self._shapes = shapes
        self._group = group

    def shape(self, parameter: Tensor) -> tuple[int, ...]:
        return self._shapes[parameter]

    def orthogonalize(self, matrices: Tensor, shape: tuple[int, ...]) -> Tensor:
        size, rows = self._group.size(), shape[0]
        count, num_local = _per_rank(len(matrices), size), matrices.shape[1]
        # (rank that works on it, matrix, rows of this rank, columns)
        parts = _padded(_padded(matrices, size * count), _per_rank(rows, size), dim=1)
        parts = self._exchange(parts.reshape(size, count, *parts.shape[1:]))
        # (rank that has the rows, …) for the matrices of this rank
        own = parts.transpose(0, 1).flatten(1, 2)
        num_own = max(0, min(count, len(matrices) - count * self._group.rank()))
        result = orthogonalize(own[:num_own, :rows])
        result = _padded(_padded(result, count), own.shape[1], dim=1)
        parts = self._exchange(result.reshape(count, size, -1, shape[1]).transpose(0, 1))
        return parts.flatten(0, 1)[: len(matrices), :num_local]

    def _exchange(self, parts: Tensor) -> Tensor:
        """Part i of each rank to rank i."""
        received = torch.empty_like(parts, memory_format=torch.contiguous_format)
        with lost_ranks_named():
            distributed.all_to_all_single(received, parts.contiguous(), group=self._group)
        return received


def _per_rank(num_things: int, size: int) -> int:
    return -(-num_things // size)


def _padded(tensor: Tensor, length: int, dim: int = 0) -> Tensor:
    """With zeros behind, up to the length."""
    missing = list(tensor.shape)
    missing[dim] = length - tensor.shape[dim]
    return torch.cat([tensor, tensor.new_zeros(missing)], dim) if missing[dim] else tensor
