"""How the gradients of a step's micro-batches become one sum, over all ranks that train a run.

`Reduction` is all that a training step knows of other processes. `Accumulated` is the plain form of
one process: micro-batch after micro-batch is added to `.grad`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from groundup.distributed.process_group import ALONE, World
from groundup.optim.clipping import gradient_norm

Backward = Callable[[int], Tensor]
"""Computes the loss of the micro-batch with this number and adds its gradients to `.grad`; gives
the loss, detached."""


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


def in_pieces(tensors: Iterable[Tensor], num_bytes: int) -> Iterator[list[Tensor]]:
    """Neighbours of one type that travel together.

    tensors: in the order in which they leave.
    num_bytes: a piece ends with the tensor that makes it this large.
    """
    piece: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if piece and (tensor.dtype != piece[0].dtype or size >= num_bytes):
            yield piece
            piece, size = [], 0
        piece.append(tensor)
        size += tensor.nbytes
    yield piece
