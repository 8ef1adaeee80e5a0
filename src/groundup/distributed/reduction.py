"""How the gradients of a step's micro-batches become one sum, over all ranks that train a run.

`Reduction` is all that a training step knows of other processes: `FastReduction` is the backend's
all-reduce, or nothing for a process alone, `ExactReduction` one fixed binary tree.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, distributed

from groundup.distributed.matrices import CopiedMatrices
from groundup.distributed.process_group import ONE_PROCESS, ProcessGroup, lost_ranks_named
from groundup.optim.clipping import gradient_norm
from groundup.optim.muon import WholeMatrices
from groundup.optim.orthogonalization import orthogonalize_each

Backward = Callable[[int], Tensor]
"""Computes the loss of the micro-batch with this number and adds its gradients to `.grad`; gives
the loss, detached."""

T = TypeVar("T")

# Gradients travel in pieces of about this size: larger ones are new memory each time.
_PIECE_BYTES = 8 << 20
# Large enough for the wire to be busy, small enough for the first to leave early.
_BUCKET_BYTES = 32 << 20


class Reduction(Protocol):
    """Sums losses and gradients over all micro-batches of all ranks."""

    ranks: ProcessGroup

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

    def matrices(self) -> WholeMatrices:
        """How the ranks share what Muon does to matrices."""
        return CopiedMatrices(self.ranks)


class FastReduction(Reduction):
    """Adds gradients by the backend's all-reduce, in its order: another number of ranks may change
    the last bits.

    Micro-batches are added on each rank; in the last one a bucket of gradients leaves as soon as
    all of it has been computed. A parameter without a gradient gets 0, where there are others.
    """

    def __init__(self, ranks: ProcessGroup = ONE_PROCESS) -> None:
        self.ranks = ranks

    def sum_gradients(
        self, parameters: Sequence[Tensor], num_micro_batches: int, backward: Backward
    ) -> Tensor:
        learning = [one for one in parameters if one.requires_grad]
        total = torch.zeros((), device=learning[0].device)
        with lost_ranks_named():
            for index in range(num_micro_batches - 1):
                total += backward(index)
            if self.ranks.size == 1:
                total += backward(num_micro_batches - 1)
                return total
            departure = _Departure(learning)
            try:
                total += backward(num_micro_batches - 1)
            finally:
                departure.stop()
            departure.finish()
            distributed.all_reduce(total)
        return total


class _Departure:
    """The buckets of one step. They leave in one order, which is that of all ranks."""

    def __init__(self, learning: Sequence[Tensor]) -> None:
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
            _put(flat, [_gradient(one) for one in bucket])

    def _send(self) -> None:
        bucket = self._buckets[len(self._sent)]
        for parameter in bucket:
            parameter.grad = _gradient(parameter)
        flat = torch.cat([_gradient(one).reshape(-1) for one in bucket])
        self._sent.append((flat, distributed.all_reduce(flat, async_op=True)))


class ExactReduction(Reduction):
    """Adds gradients in one fixed binary tree, so that every number of ranks gives the same bits.

    The leaves are the micro-batches of the whole batch in their order. A node over micro-batches
    [a, b) is the sum of the nodes over [a, m) and [m, b), m in the middle. Each rank has a
    contiguous part of the leaves, and adds up the largest nodes that lie in it: a single one if the
    number of ranks is a power of two. Then each rank gets a slice of all these nodes, adds the rest
    of the tree for it, and the slices of the root are gathered. A parameter without a gradient
    gets 0.
    """

    def __init__(self, ranks: ProcessGroup = ONE_PROCESS) -> None:
        self.ranks = ranks

    def sum_gradients(
        self, parameters: Sequence[Tensor], num_micro_batches: int, backward: Backward
    ) -> Tensor:
        rank, size = self.ranks.rank, self.ranks.size
        learning = [one for one in parameters if one.requires_grad]
        whole = range(size * num_micro_batches)
        parts = [whole[i * num_micro_batches :][:num_micro_batches] for i in range(size)]

        def leaf(node: range) -> list[Tensor] | None:
            if len(node) > 1:
                return None
            sums = [backward(node.start - parts[rank].start), *map(_gradient, learning)]
            for parameter in learning:
                parameter.grad = None
            return sums

        def add(left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
            for one, other in zip(left, right, strict=True):
                one += other
            return left

        own = [_add_up(node, leaf, add) for node in _largest_nodes(whole, parts[rank])]
        sums = own[0]
        if size > 1:
            nodes = [_largest_nodes(whole, part) for part in parts]
            first = 0
            with torch.no_grad(), lost_ranks_named():
                for piece in _in_pieces(sums, _PIECE_BYTES):
                    last = first + len(piece)
                    rows = [
                        torch.cat([one.reshape(-1) for one in node[first:last]]) for node in own
                    ]
                    _put(_sum_over_ranks(rank, rows, whole, nodes), piece)
                    first = last
        loss, *gradients = sums
        for parameter, gradient in zip(learning, gradients, strict=True):
            parameter.grad = gradient
        return loss

    def matrices(self) -> WholeMatrices:
        return CopiedMatrices(self.ranks, orthogonalize_each)


def _halves(node: range) -> tuple[range, range]:
    return node[: len(node) // 2], node[len(node) // 2 :]


def _largest_nodes(node: range, part: range) -> list[range]:
    """The nodes below `node` that lie in a part, but not their parents."""
    if node.start >= part.stop or node.stop <= part.start:
        return []
    if part.start <= node.start and node.stop <= part.stop:
        return [node]
    return [found for half in _halves(node) for found in _largest_nodes(half, part)]


def _add_up(node: range, find: Callable[[range], T | None], add: Callable[[T, T], T]) -> T:
    """The sum over a node, of the nodes below it that can be found."""
    if (found := find(node)) is not None:
        return found
    left, right = _halves(node)
    return add(_add_up(left, find, add), _add_up(right, find, add))


def _sum_over_ranks(
    rank: int, rows: list[Tensor], whole: range, nodes: list[list[range]]
) -> Tensor:
    """The root, of vectors for the nodes of this rank."""
    size, length = len(nodes), len(rows[0])
    own = _on_wire(torch.nn.functional.pad(torch.stack(rows), (0, -length % size)))
    # For each rank, its slice of the nodes of this one.
    outgoing = own.view(len(rows), size, -1).transpose(0, 1).contiguous()
    incoming = [outgoing.new_empty(len(found), outgoing.shape[2]) for found in nodes]
    _exchange(rank, list(outgoing), incoming)
    slices = dict(zip(itertools.chain(*nodes), torch.cat(incoming), strict=True))
    root = own.new_empty(size, outgoing.shape[2])
    _exchange(rank, [_add_up(whole, slices.get, torch.add)] * size, list(root))
    return root.view(-1)[:length].to(rows[0].device)


def _exchange(rank: int, outgoing: Sequence[Tensor], incoming: Sequence[Tensor]) -> None:
    """Send a tensor to each rank, and receive one of each."""
    incoming[rank].copy_(outgoing[rank])
    operations = [
        distributed.P2POp(send, tensors[other], other)
        for other in range(len(outgoing))
        for send, tensors in ((distributed.isend, outgoing), (distributed.irecv, incoming))
        if other != rank
    ]
    for request in distributed.batch_isend_irecv(operations):
        request.wait()


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


def _put(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    parts = torch.split(flat, [one.numel() for one in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _on_wire(tensor: Tensor) -> Tensor:
    """gloo sends from the memory of the host alone."""
    tensor = tensor.contiguous()
    return tensor.cpu() if distributed.get_backend() == "gloo" else tensor
