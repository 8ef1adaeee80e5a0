"""Batches on the device, read ahead: a batch is a pure function of (seed, step, rank, world_size).

The order decides which windows a step takes; here they are gathered in a thread of their own and
copied while the step before still computes. `get_batch` is the plain form, of random windows.
"""

import contextlib
import itertools
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from groundup.data.batches.order import Ids, SampleOrder, Starts, WindowReader, batch_samples
from groundup.data.batches.transfer import Sent, Transfer, transfer_to, with_index
from groundup.data.chats import PackedRows
from groundup.data.pipeline import read_ahead
from groundup.errors import ConfigError

# Batches that are kept ready.
_PREFETCH = 2


def get_batch(
    dataset: Ids, batch_size: int, context_length: int, device: torch.device | str
) -> tuple[Tensor, Tensor]:
    """Inputs and targets, both int64 (batch_size, context_length): windows from anywhere.

    Starts are sampled from torch's global generator for the CPU, which `set_seed` governs. Target
    [i, t] is the id that follows input [i, t]. `dataset` is any 1-D array of integers.
    """
    if batch_size < 1:
        raise ConfigError(f"batch_size is {batch_size}; it must be at least 1")
    reader = WindowReader(dataset, context_length)
    num_starts = reader.num_tokens - context_length
    starts = torch.randint(num_starts, (batch_size,), device="cpu").numpy()
    pin_memory = torch.device(device).type == "cuda" and torch.cuda.is_available()
    shape = (2, batch_size, context_length)
    pair = torch.empty(shape, dtype=torch.int64, device="cpu", pin_memory=pin_memory)
    reader.fill(pair.numpy(), starts)
    inputs, targets = pair.to(device, non_blocking=pin_memory)
    return inputs, targets


@dataclass(frozen=True, slots=True)
class Batch:
    """One rank's part of a step: inputs and targets, int64, of shape (rows, context_length).

    Rows that hold several sequences come with positions, counted from 0 in each of them; targets
    below 0 are then not to be learned.
    """

    step: int
    inputs: Tensor
    targets: Tensor
    micro_batch_size: int | None = None
    positions: Tensor | None = None

    def micro_batches(self) -> list["Batch"]:
        """Batches of `micro_batch_size` rows, which divides those there are."""
        size = self.micro_batch_size or len(self.inputs)
        count = len(self.inputs) // size
        inputs, targets = self.inputs.chunk(count), self.targets.chunk(count)
        positions: Sequence[Tensor | None] = [None] * count
        if self.positions is not None:
            positions = self.positions.chunk(count)
        pieces = zip(inputs, targets, positions, strict=True)
        return [Batch(self.step, one, other, None, places) for one, other, places in pieces]


class BatchLoader:
    """Makes the batches of any step: `with loader.batches(first_step) as batches: …`.

    `batch_size` counts rows over all ranks.
    """

    def __init__(
        self,
        rows: Ids | PackedRows,
        order: SampleOrder,
        batch_size: int,
        micro_batch_size: int | None = None,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world_size: int = 1,
        first_row: int = 0,
    ) -> None:
        """first_row: how many rows of the order come before the first step."""
        self._reader: WindowReader | PackedRows = (
            rows if isinstance(rows, PackedRows) else WindowReader(rows, order.context_length)
        )
        self.rank_batch_size = len(batch_samples(0, batch_size, rank, world_size))
        self.order = order
        self.batch_size = batch_size
        self.micro_batch_size = micro_batch_size
        self.device = with_index(torch.device(device))
        self.rank = rank
        self.first_row = first_row
        self.world_size = world_size

    def batches(self, first_step: int = 0, num_steps: int | None = None) -> "Batches":
        """The batches of steps first_step, first_step + 1, …; without `num_steps`, for ever."""
        return Batches(self, first_step, num_steps)

    def starts(self, step: int) -> Starts:
        """Where the windows of this rank's rows begin at a step."""
        samples = batch_samples(step, self.batch_size, self.rank, self.world_size)
        return self.order.starts(self.first_row + samples.start, len(samples))

    def _send(self, steps: Iterator[int], transfer: Transfer) -> Iterator[tuple[int, Sent]]:
        for step in steps:
            buffer = transfer.host_buffer()
            self._reader.fill(buffer.numpy(), self.starts(step))
            yield step, transfer.send(buffer)


class Batches(Iterator[Batch]):
    """Batches in the order of their steps. Leaving a `with` block, or `close`, ends the thread.

    It also ends with the last batch, with an error, and when nobody holds this object any more.
    """

    def __init__(self, loader: BatchLoader, first_step: int, num_steps: int | None) -> None:
        steps = itertools.islice(itertools.count(first_step), num_steps)
        shape = (loader._reader.num_parts, loader.rank_batch_size, loader.order.context_length)
        self._micro_batch_size = loader.micro_batch_size
        self._transfer = transfer_to(loader.device, shape)
        resources = contextlib.ExitStack()
        sent = read_ahead(loader._send(steps, self._transfer), _PREFETCH)
        self._sent = resources.enter_context(sent)
        self._finish = weakref.finalize(self, _close, resources)

    def __next__(self) -> Batch:
        try:
            step, sent = next(self._sent)
        except BaseException:
            self.close()
            raise
        inputs, targets, *positions = self._transfer.receive(sent)
        return Batch(step, inputs, targets, self._micro_batch_size, *positions)

    def close(self) -> None:
        self._finish()
        self._sent = iter(())

    def __enter__(self) -> "Batches":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _close(resources: contextlib.ExitStack) -> None:
    # The garbage collector may run in the very thread that is to end, which cannot wait for
    # itself; it has been told to stop all the same.
    with contextlib.suppress(RuntimeError):
        resources.close()
