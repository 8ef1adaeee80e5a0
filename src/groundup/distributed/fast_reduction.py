"""Gradients added by the backend's all-reduce while the backward pass still computes.

The order of the sums is the backend's, so that another number of ranks gives other last bits.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed

from groundup.distributed.process_group import World, lost_ranks_named
from groundup.distributed.reduction import Backward, Reduction, in_pieces

# Large enough for the wire to be busy, small enough for the first to leave early.
_BUCKET_BYTES = 32 << 20


class FastReduction(Reduction):
    """Leaves the sums on every rank. A parameter without a gradient gets 0.

    Micro-batches are added on each rank; in the last one a bucket of gradients leaves as soon as
    all of it has been computed.
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
        self._buckets = list(in_pieces(reversed(learning), _BUCKET_BYTES))
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
