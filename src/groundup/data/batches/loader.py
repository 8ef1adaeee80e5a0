"""Prefetched batches on the device: a batch is a pure function of (seed, step, rank, world_size).

`order` decides which windows a step reads. A separate thread reads them and copies them to the
device while the previous step computes. `get_batch` is the simple form, with random windows.
"""

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from groundup.data.batches.order import Ids, SampleOrder, Starts, WindowReader, batch_samples
from groundup.data.batches.transfer import Sent, Transfer, transfer_to, with_index
from groundup.data.chats import PackedRows
from groundup.data.pipeline import read_ahead
from groundup.errors import ConfigError

_PREFETCH = 2


def get_batch(
    dataset: Ids, batch_size: int, context_length: int, device: torch.device | str
) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of random windows, both int64 (batch_size, context_length).

    Starts are sampled from torch's global CPU generator (see `set_seed`). Target [i, t] is the id
    that follows input [i, t]. `dataset` is any 1-D array of integers.
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
    """One rank's batch for a step: inputs and targets, int64, of shape (rows, context_length).

    Rows packed with several sequences have positions, which restart at 0 in each sequence; the loss
    then ignores targets below 0. Rows of pairs have chosen answers in the left half, rejected ones
    in the right half, and for each token the number of its pair.
    """

    step: int
    inputs: Tensor
    targets: Tensor
    micro_batch_size: int | None = None
    positions: Tensor | None = None
    pairs: Tensor | None = None

    def micro_batches(self) -> list["Batch"]:
        """Split into batches of `micro_batch_size` rows, which must divide the number of rows."""
        size = self.micro_batch_size or len(self.inputs)
        count = len(self.inputs) // size
        inputs, targets = self.inputs.chunk(count), self.targets.chunk(count)
        rest = (part.chunk(count) for part in (self.positions, self.pairs) if part is not None)
        pieces = zip(inputs, targets, *rest, strict=True)
        return [Batch(self.step, one, other, None, *more) for one, other, *more in pieces]


class BatchLoader:
    """Loads the batches from any step on: `with loader.batches(first_step) as batches: …`.

    `batch_size` is the number of rows over all ranks.
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
        skip_sequences: int = 0,
    ) -> None:
        """skip_sequences: step 0 begins after this many windows of the order."""
        self._reader: WindowReader | PackedRows = (
            rows if isinstance(rows, PackedRows) else WindowReader(rows, order.context_length)
        )
        self.rank_batch_size = len(batch_samples(0, batch_size, rank, world_size))
        self.order = order
        self.batch_size = batch_size
        self.micro_batch_size = micro_batch_size
        self.device = with_index(torch.device(device))
        self.rank = rank
        self.skip_sequences = skip_sequences
        self.world_size = world_size

    @contextlib.contextmanager
    def batches(
        self, first_step: int = 0, num_steps: int | None = None
    ) -> Iterator[Iterator[Batch]]:
        """Yield an iterator over the batches of steps first_step, first_step + 1, …; endless by
        default. Leaving the block ends the thread that prefetches them."""
        steps = itertools.islice(itertools.count(first_step), num_steps)
        shape = (self._reader.num_parts, self.rank_batch_size, self.order.context_length)
        transfer = transfer_to(self.device, shape)
        with read_ahead(self._send(steps, transfer), _PREFETCH) as sent:
            yield (self._receive(step, one, transfer) for step, one in sent)

    def starts(self, step: int) -> Starts:
        """Return the start of each window of this rank's rows at a step."""
        samples = batch_samples(step, self.batch_size, self.rank, self.world_size)
        return self.order.starts(self.skip_sequences + samples.start, len(samples))

    def _send(self, steps: Iterator[int], transfer: Transfer) -> Iterator[tuple[int, Sent]]:
        for step in steps:
            buffer = transfer.host_buffer()
            self._reader.fill(buffer.numpy(), self.starts(step))
            yield step, transfer.send(buffer)

    def _receive(self, step: int, sent: Sent, transfer: Transfer) -> Batch:
        inputs, targets, *positions = transfer.receive(sent)
        return Batch(step, inputs, targets, self.micro_batch_size, *positions)
