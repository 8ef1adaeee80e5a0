"""How the gradients of a step's micro-batches become one sum, over all ranks that train a run.

`Reduction` is all that a training step knows of other processes: `Accumulated` is one process,
`FastReduction` the backend's all-reduce, `ExactReduction` one fixed binary tree.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, distributed

from groundup.distributed.process_group import ALONE, World, lost_ranks_named
from groundup.optim.clipping import gradient_norm

Backward = Callable[[int], Tensor]
"""Computes the loss of the micro-batch with this number and adds its gradients to `.grad`; gives
the loss, detached."""


# Gradients travel in pieces of about this size, which bounds the memory for what comes in.
_PIECE_BYTES = 64 << 20
# Large enough for the wire to be busy, small enough for the first to leave early.
_BUCKET_BYTES = 32 << 20


class Reduction(Protocol):
    """Sums losses and gradients over all micro-batches of all ranks."""

    world: World

    def sum_gradients(
        self, parameters: Sequence[Tensor], num_micro_batches: int, backward: Backward
    ) -> Tensor:
        """Call `backward` for each of this rank's micro-batches, and leave the sums in `.grad`.

        Gives the sum of the losses. `.grad` is None before.
        """
        ...

    def gradient_norm(self, parameters: Sequence[Tensor]) -> Tensor:
        """The L2 norm of all gradients as one vector, the same on every rank."""
        return gradient_norm(parameters)


class Accumulated(Reduction):
    """One process: the micro-batches are added in their order."""

    world = ALONE

    def sum_gradients(
        self, parameters: Sequence[Tensor], num_micro_batches: int, backward: Backward
    ) -> Tensor:
        total = torch.zeros((), device=parameters[0].device)
        for index in range(num_micro_batches):
            total += backward(index)
        return total


class FastReduction(Reduction):
    """Adds gradients by the backend's all-reduce, in its order: another number of ranks may change
    the last bits.

    Micro-batches are added on each rank; in the last one a bucket of gradients leaves as soon as
    all of it has been computed. A parameter without a gradient gets 0.
    """

    def __init__(self, world: World, reduce_dtype: torch.dtype | None = None) -> None:
        """reduce_dtype: what gradients are sent in; their own type by default."""
        self.world = world
        self._reduce_dtype = reduce_dtype

    def sum_gradients(
        self, parameters: Sequence[Tensor], num_micro_batches: int, backward: Backward
    ) -> Tensor:
        learning = [one for one in parameters if one.requires_grad]
        total = torch.zeros((), device=learning[0].device)
        with lost_ranks_named(self.world):
            for index in range(num_micro_batches - 1):
                total += backward(index)
            departure = _Departure(learning, self._reduce_dtype)
            try:
                total += backward(num_micro_batches - 1)
            finally:
                departure.stop()
            departure.finish()
            distributed.all_reduce(total)
        return total


class _Departure:
    """The buckets of one step. They leave in one order, which is that of all ranks."""

    def __init__(self, learning: Sequence[Tensor], reduce_dtype: torch.dtype | None) -> None:
        self._dtype = reduce_dtype
        # From the last parameter to the first, as backward comes by.
        self._buckets = list(_in_pieces(reversed(learning), _BUCKET_BYTES))
        bucket_of = {id(one): i for i, bucket in enumerate(self._buckets) for one in bucket}
        self._missing = [len(bucket) for bucket in self._buckets]
        self._sent: list[tuple[Tensor, Any]] = []

        def note(parameter: Tensor) -> None:
            self._missing[bucket_of[id(parameter)]] -= 1
            while len(self._sent) < len(self._buckets) and not self._missing[len(self._sent)]:
                self._send()

        self._hooks = [
            one.register_post_accumulate_grad_hook(note)  # type: ignore[no-untyped-call]
            for one in learning
        ]

    def stop(self) -> None:
        """No gradient is awaited any more."""
        for hook in self._hooks:
            hook.remove()

    def finish(self) -> None:
        """Send what is left, and put all sums into `.grad`."""
        while len(self._sent) < len(self._buckets):
            self._send()
        for bucket, (flat, request) in zip(self._buckets, self._sent, strict=True):
            request.wait()
            parts = torch.split(flat, [one.numel() for one in bucket])
            for parameter, part in zip(bucket, parts, strict=True):
                assert parameter.grad is not None
                parameter.grad.copy_(part.view_as(parameter))

    def _send(self) -> None:
        bucket = self._buckets[len(self._sent)]
        for parameter in bucket:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        flat = torch.cat([one.grad.reshape(-1) for one in bucket if one.grad is not None])
        flat = flat.to(self._dtype or flat.dtype)
        self._sent.append((flat, distributed.all_reduce(flat, async_op=True)))


class ExactReduction(Reduction):
    """Adds gradients in one fixed binary tree, so that every number of ranks gives the same bits.

    The leaves are the micro-batches of the whole batch in their order. A node over micro-batches
    [a, b) is the sum of the nodes over [a, m) and [m, b), m in the middle. Each rank has a
    contiguous part of the leaves; if the number of ranks is a power of two that part is a node, and
    nodes are added by recursive halving and doubling: a sum of two is the same from both sides, so
    each of two ranks adds half of the gradients, then a quarter with the next neighbour, and what
    they have is gathered on the way back. With another number of ranks the rank of a node's first
    leaf collects what it lacks, and rank 0 tells all. A parameter without a gradient gets 0.
    """

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
            for piece in _in_pieces(sums, _PIECE_BYTES):
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


def _in_pieces(tensors: Iterable[Tensor], num_bytes: int) -> Iterator[list[Tensor]]:
    """Neighbours of one type that travel together, up to the tensor that reaches `num_bytes`."""
    piece: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if piece and (tensor.dtype != piece[0].dtype or size >= num_bytes):
            yield piece
            piece, size = [], 0
        piece.append(tensor)
        size += tensor.nbytes
    yield piece


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
