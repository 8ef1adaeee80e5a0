"""Summing the gradients of a step over its micro-batches and all ranks.

The training step only sees the `Reduction` interface: `FastReduction` uses the backend's all-reduce
(none for a single process), `ExactReduction` a fixed binary tree.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, distributed

from groundup.distributed.matrices import ReplicatedMatrices
from groundup.distributed.process_group import ONE_PROCESS, ProcessGroup, lost_rank_errors
from groundup.optim.clipping import gradient_norm
from groundup.optim.muon import WholeMatrices
from groundup.optim.orthogonalization import orthogonalize_each

Backward = Callable[[int], Tensor]
"""Runs forward and backward of the micro-batch with this index, accumulating into `.grad`; returns
the detached loss."""

T = TypeVar("T")

# Gradients are exchanged in pieces of about this size: larger buffers are allocated anew each time.
_PIECE_BYTES = 8 << 20
# Large enough to saturate the network, small enough for communication to start early.
_BUCKET_BYTES = 32 << 20


class Reduction(Protocol):
    """Sums losses and gradients over all micro-batches of all ranks."""

    ranks: ProcessGroup

    def sum_gradients(
        self, parameters: Sequence[Tensor], num_micro_batches: int, backward: Backward
    ) -> Tensor:
        """Call `backward` for each of this rank's micro-batches, and leave the sums in `.grad`.

        Returns the sum of the losses. `.grad` must be None before.
        """
        ...

    def gradient_norm(self, parameters: Sequence[Tensor]) -> Tensor:
        """Return the global L2 norm of the gradients, the same on every rank."""
        return gradient_norm(parameters)

    def matrices(self) -> WholeMatrices:
        """Return how Muon distributes its matrices over the ranks."""
        return ReplicatedMatrices(self.ranks)


class FastReduction(Reduction):
    """Sums gradients by the backend's all-reduce, whose order of summation, and therefore the last
    bits, may depend on the world size.

    Each rank accumulates its micro-batches; during the last backward pass, each bucket of gradients
    is reduced as soon as it is complete. With several ranks, missing gradients become 0.
    """

    def __init__(self, ranks: ProcessGroup = ONE_PROCESS) -> None:
        self.ranks = ranks

    def sum_gradients(
        self, parameters: Sequence[Tensor], num_micro_batches: int, backward: Backward
    ) -> Tensor:
        trainable = [one for one in parameters if one.requires_grad]
        total = torch.zeros((), device=trainable[0].device)
        with lost_rank_errors():
            for index in range(num_micro_batches - 1):
                total += backward(index)
            if self.ranks.size == 1:
                total += backward(num_micro_batches - 1)
                return total
            buckets = _BucketedAllReduce(trainable)
            try:
                total += backward(num_micro_batches - 1)
            finally:
                buckets.stop()
            buckets.finish()
            distributed.all_reduce(total)
        return total


class _BucketedAllReduce:
    """Asynchronous all-reduces of one step's buckets, in the same order on all ranks."""

    def __init__(self, trainable: Sequence[Tensor]) -> None:
        # From the last parameter to the first, the order of the backward pass.
        self._buckets = list(_chunks(reversed(trainable), _BUCKET_BYTES))
        bucket_of = {id(one): i for i, bucket in enumerate(self._buckets) for one in bucket}
        self._missing = [len(bucket) for bucket in self._buckets]
        self._sent: list[tuple[Tensor, Any]] = []

        def note(parameter: Tensor) -> None:
            self._missing[bucket_of[id(parameter)]] -= 1
            while len(self._sent) < len(self._buckets) and not self._missing[len(self._sent)]:
                self._send()

        self._hooks = [
            one.register_post_accumulate_grad_hook(note)  # type: ignore[no-untyped-call]
            for one in trainable
        ]

    def stop(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def finish(self) -> None:
        """Reduce the remaining buckets, and copy all sums into `.grad`."""
        while len(self._sent) < len(self._buckets):
            self._send()
        for bucket, (flat, request) in zip(self._buckets, self._sent, strict=True):
            request.wait()
            _unflatten(flat, [_gradient(one) for one in bucket])

    def _send(self) -> None:
        bucket = self._buckets[len(self._sent)]
        for parameter in bucket:
            parameter.grad = _gradient(parameter)
        flat = torch.cat([_gradient(one).reshape(-1) for one in bucket])
        self._sent.append((flat, distributed.all_reduce(flat, async_op=True)))


class ExactReduction(Reduction):
    """Sums gradients in a fixed binary tree, bitwise the same for any world size.

    The leaves are the micro-batches of the whole batch, in order. The node over micro-batches
    [a, b) is the sum of the nodes over [a, m) and [m, b), where m is the middle. Each rank has a
    contiguous range of leaves and sums the largest nodes inside it: a single one if the world size
    is a power of two. Then each rank receives one slice of all these nodes and sums the rest of the
    tree for it, and the slices of the root are all-gathered. Missing gradients become 0.
    """

    def __init__(self, ranks: ProcessGroup = ONE_PROCESS) -> None:
        self.ranks = ranks

    def sum_gradients(
        self, parameters: Sequence[Tensor], num_micro_batches: int, backward: Backward
    ) -> Tensor:
        rank, size = self.ranks.rank, self.ranks.size
        trainable = [one for one in parameters if one.requires_grad]
        whole = range(size * num_micro_batches)
        parts = [whole[i * num_micro_batches :][:num_micro_batches] for i in range(size)]

        def leaf(node: range) -> list[Tensor] | None:
            if len(node) > 1:
                return None
            sums = [backward(node.start - parts[rank].start), *map(_gradient, trainable)]
            for parameter in trainable:
                parameter.grad = None
            return sums

        def add(left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
            for one, other in zip(left, right, strict=True):
                one += other
            return left

        own = [_tree_sum(node, leaf, add) for node in _largest_nodes(whole, parts[rank])]
        sums = own[0]
        if size > 1:
            nodes = [_largest_nodes(whole, part) for part in parts]
            first = 0
            with torch.no_grad(), lost_rank_errors():
                for piece in _chunks(sums, _PIECE_BYTES):
                    last = first + len(piece)
                    rows = [
                        torch.cat([one.reshape(-1) for one in node[first:last]]) for node in own
                    ]
                    _unflatten(_sum_over_ranks(rank, rows, whole, nodes), piece)
                    first = last
        loss, *gradients = sums
        for parameter, gradient in zip(trainable, gradients, strict=True):
            parameter.grad = gradient
        return loss

    def matrices(self) -> WholeMatrices:
        return ReplicatedMatrices(self.ranks, orthogonalize_each)


def _halves(node: range) -> tuple[range, range]:
    return node[: len(node) // 2], node[len(node) // 2 :]


def _largest_nodes(node: range, part: range) -> list[range]:
    """Return the nodes below `node` that are inside a part, but whose parents are not."""
    if node.start >= part.stop or node.stop <= part.start:
        return []
    if part.start <= node.start and node.stop <= part.stop:
        return [node]
    return [found for half in _halves(node) for found in _largest_nodes(half, part)]


def _tree_sum(node: range, find: Callable[[range], T | None], add: Callable[[T, T], T]) -> T:
    """Sum a node recursively from the nodes that `find` returns."""
    if (found := find(node)) is not None:
        return found
    left, right = _halves(node)
    return add(_tree_sum(left, find, add), _tree_sum(right, find, add))


def _sum_over_ranks(
    rank: int, rows: list[Tensor], whole: range, nodes: list[list[range]]
) -> Tensor:
    """Return the root's value, given the vectors of this rank's nodes."""
    size, length = len(nodes), len(rows[0])
    own = _to_transport(torch.nn.functional.pad(torch.stack(rows), (0, -length % size)))
    # For each rank, its slice of this rank's nodes.
    outgoing = own.view(len(rows), size, -1).transpose(0, 1).contiguous()
    incoming = [outgoing.new_empty(len(found), outgoing.shape[2]) for found in nodes]
    _exchange(rank, list(outgoing), incoming)
    slices = dict(zip(itertools.chain(*nodes), torch.cat(incoming), strict=True))
    root = own.new_empty(size, outgoing.shape[2])
    _exchange(rank, [_tree_sum(whole, slices.get, torch.add)] * size, list(root))
    return root.view(-1)[:length].to(rows[0].device)


def _exchange(rank: int, outgoing: Sequence[Tensor], incoming: Sequence[Tensor]) -> None:
    """Send one tensor to each rank, and receive one from each."""
    incoming[rank].copy_(outgoing[rank])
    operations = [
        distributed.P2POp(send, tensors[other], other)
        for other in range(len(outgoing))
        for send, tensors in ((distributed.isend, outgoing), (distributed.irecv, incoming))
        if other != rank
    ]
    for request in distributed.batch_isend_irecv(operations):
        request.wait()


def _chunks(tensors: Iterable[Tensor], num_bytes: int) -> Iterator[list[Tensor]]:
    """Group adjacent tensors of one dtype until a group reaches `num_bytes`."""
    piece: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if piece and (tensor.dtype != piece[0].dtype or size >= num_bytes):
            yield piece
            piece, size = [], 0
        piece.append(tensor)
        size += tensor.nbytes
    yield piece


def _unflatten(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    parts = torch.split(flat, [one.numel() for one in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _to_transport(tensor: Tensor) -> Tensor:
    """Make a tensor contiguous, and copy it to the CPU for gloo's point-to-point operations."""
    tensor = tensor.contiguous()
    return tensor.cpu() if distributed.get_backend() == "gloo" else tensor
