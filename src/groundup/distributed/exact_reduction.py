"""Gradients added in one fixed binary tree, so that every number of ranks gives the same bits.

The leaves are the micro-batches of the whole batch in their order. A node over micro-batches
[a, b) is the sum of the nodes over [a, m) and [m, b), m in the middle. Each rank has a contiguous
part of the leaves, and where their number is a power of two that part is a node. A sum of two is
the same from both sides, so that either of two ranks may add: each takes half of the gradients,
then a quarter with the next neighbour and so on, and what they have is gathered on the way back
(recursive halving and doubling). With another number of ranks the rank of a node's first leaf
collects what it lacks, and rank 0 tells all.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, distributed

from groundup.distributed.process_group import ALONE, World, lost_ranks_named
from groundup.distributed.reduction import Backward, Reduction, in_pieces

# Gradients travel in pieces of about this size, which bounds the memory for what comes in.
_PIECE_BYTES = 64 << 20


class ExactReduction(Reduction):
    """Leaves the sums of the fixed tree on every rank. A parameter without a gradient gets 0."""

    def __init__(self, world: World = ALONE) -> None:
        self.world = world

    def sum_gradients(
        self, parameters: Sequence[Tensor], num_micro_batches: int, backward: Backward
    ) -> Tensor:
        tree = _Tree(self.world, parameters, num_micro_batches, backward)
        loss, *gradients = tree.sum()
        for parameter, gradient in zip(tree.learning, gradients, strict=True):
            parameter.grad = gradient
        return loss


class _Tree:
    """The tree of one step. What is summed is the loss and the gradients of `learning`."""

    def __init__(
        self, world: World, parameters: Sequence[Tensor], num_per_rank: int, backward: Backward
    ) -> None:
        self.learning = [one for one in parameters if one.requires_grad]
        self._rank, self._size = world.rank, world.size
        self._world = world
        self._num_per_rank = num_per_rank
        self._backward = backward

    def sum(self) -> list[Tensor]:
        """The root, on every rank."""
        is_power_of_two = self._size & (self._size - 1) == 0
        first = self._rank * self._num_per_rank
        sums = (
            self._node(first, first + self._num_per_rank)
            if is_power_of_two
            else self._node(0, self._size * self._num_per_rank)
        )
        if self._size == 1:
            assert sums is not None
            return sums
        if sums is None:
            sums = [torch.zeros((), device=self.learning[0].device)]
            sums += [torch.empty_like(one) for one in self.learning]
        with torch.no_grad(), lost_ranks_named(self._world):
            for piece in in_pieces(sums, _PIECE_BYTES):
                flat = torch.cat([tensor.reshape(-1) for tensor in piece])
                if is_power_of_two:
                    flat = self._add_nodes(flat)
                else:
                    distributed.broadcast(flat, src=0)
                parts = torch.split(flat, [tensor.numel() for tensor in piece])
                for tensor, part in zip(piece, parts, strict=True):
                    tensor.copy_(part.view_as(tensor))
        return sums

    def _add_nodes(self, flat: Tensor) -> Tensor:
        """The root of which each rank has a node; every rank adds one part of it."""
        padded = torch.nn.functional.pad(flat, (0, -len(flat) % self._size))
        own = padded
        siblings: list[tuple[Tensor, Tensor, int]] = []
        for level in range(self._size.bit_length() - 1):
            other = self._rank ^ (1 << level)
            halves = own.chunk(2)
            own, theirs = halves if self._rank < other else halves[::-1]
            own += _exchange(theirs, other)
            siblings.append((own, theirs, other))
        for summed, theirs, other in reversed(siblings):
            theirs.copy_(_exchange(summed, other))
        return padded[: len(flat)]

    def _node(self, first: int, end: int) -> list[Tensor] | None:
        """The sums of leaves `first` … `end` - 1, on the rank of the first leaf alone."""
        owner = first // self._num_per_rank
        if end - first == 1:
            return self._leaf(first) if owner == self._rank else None
        middle = (first + end) // 2
        left, right = self._node(first, middle), self._node(middle, end)
        sender = middle // self._num_per_rank
        if right is not None and owner != self._rank:
            for tensor in right:
                with lost_ranks_named(self._world):
                    distributed.send(_on_wire(tensor), owner)
            return None
        if left is None:
            return None
        if right is None:
            right = [torch.empty_like(_on_wire(tensor)) for tensor in left]
            for tensor in right:
                with lost_ranks_named(self._world):
                    distributed.recv(tensor, sender)
        for tensor, other in zip(left, right, strict=True):
            tensor += other.to(tensor.device)
        return left

    def _leaf(self, index: int) -> list[Tensor]:
        loss = self._backward(index - self._rank * self._num_per_rank)
        sums = [loss, *(_gradient(one) for one in self.learning)]
        for parameter in self.learning:
            parameter.grad = None
        return sums


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _exchange(own: Tensor, other: int) -> Tensor:
    """What rank `other` has, which gets ours."""
    outgoing = _on_wire(own)
    incoming = torch.empty_like(outgoing)
    operations = [
        distributed.P2POp(distributed.isend, outgoing, other),
        distributed.P2POp(distributed.irecv, incoming, other),
    ]
    for request in distributed.batch_isend_irecv(operations):
        request.wait()
    return incoming.to(own.device)


def _on_wire(tensor: Tensor) -> Tensor:
    """gloo sends from the memory of the host alone."""
    tensor = tensor.contiguous()
    return tensor.cpu() if distributed.get_backend() == "gloo" else tensor
