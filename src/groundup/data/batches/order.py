"""Which windows of a text are read, and when: sample number n is a pure function of (seed, n).

Whatever the number of ranks, threads or resumes, the stream of samples is the same, and any
position in it is reached at once. A window of context_length inputs takes one id more, for the last
target. Making batches of windows is left to `loader`.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from groundup.data.counter_random import UInt64, check_seed, permute, random_below
from groundup.data.shards.reading import Shards
from groundup.errors import ConfigError, DataError

Starts = npt.NDArray[np.int64]

# Numbers that tell the uses of one seed apart; to change one is to change every run's order.
_, _EPOCH_OFFSETS, _EPOCH_SHUFFLES, _FIXED_WINDOWS, _MIXED = range(5)

BLOCK_SAMPLES = 10_000
"""Weights are exact to one part in so many."""


class SampleOrder(Protocol):
    """An endless sequence of windows over a text of `num_tokens` ids."""

    @property
    def num_tokens(self) -> int: ...
    @property
    def context_length(self) -> int: ...
    def starts(self, first_sample: int, count: int) -> Starts:
        """Where the windows of samples first_sample … first_sample + count - 1 begin."""
        ...


class ShuffledEpochs:
    """Windows that lie end to end, each once an epoch, in an order that differs every epoch.

    Every epoch begins at another position, so that all ids are seen in time; to make room for that,
    up to two windows of ids are left out of an epoch.
    """

    def __init__(self, num_tokens: int, context_length: int, seed: int) -> None:
        check_window(num_tokens, context_length)
        self.num_tokens = num_tokens
        self.context_length = context_length
        self.seed = check_seed(seed)
        self.num_windows = max(1, (num_tokens - context_length) // context_length)
        """Samples in an epoch."""

    def starts(self, first_sample: int, count: int) -> Starts:
        return self.starts_of(number_samples(first_sample, count))

    def starts_of(self, samples: UInt64) -> Starts:
        """Where the windows of the samples with these numbers begin."""
        epochs, positions = np.divmod(samples, np.uint64(self.num_windows))
        num_offsets = self.num_tokens - self.num_windows * self.context_length
        offsets = random_below(self.seed, _EPOCH_OFFSETS, epochs, num_offsets)
        windows = permute(self.seed, _EPOCH_SHUFFLES, epochs, positions, self.num_windows)
        return (offsets + windows * np.uint64(self.context_length)).astype(np.int64)


class MixedOrder:
    """The orders of several texts that lie one behind the other, mixed by weight.

    Of every block of samples each text has the same number, as its weight says, at positions that a
    permutation chooses; which of its own samples come next follows by counting. So any position is
    reached at once, and each text keeps its own order and epochs.
    """

    def __init__(
        self, orders: Sequence[ShuffledEpochs], weights: Sequence[float], seed: int
    ) -> None:
        self.num_tokens = sum(order.num_tokens for order in orders)
        self.context_length = orders[0].context_length
        self.seed = check_seed(seed)
        self.quotas = quotas_of(weights)
        """Samples of each text in a block."""
        self._orders = list(orders)
        self._ends = np.cumsum(self.quotas)
        self._begins = np.cumsum([0, *(order.num_tokens for order in orders)])

    def starts(self, first_sample: int, count: int) -> Starts:
        samples = number_samples(first_sample, count)
        blocks, positions = np.divmod(samples, np.uint64(BLOCK_SAMPLES))
        slots = permute(self.seed, _MIXED, blocks, positions, BLOCK_SAMPLES).astype(np.int64)
        texts = np.searchsorted(self._ends, slots, side="right")
        starts = np.empty(count, np.int64)
        for text in np.unique(texts).tolist():
            here = np.flatnonzero(texts == text)
            quota = int(self.quotas[text])
            number = slots[here] - (int(self._ends[text]) - quota)
            own = blocks[here] * np.uint64(quota) + number.astype(np.uint64)
            starts[here] = self._orders[text].starts_of(own) + self._begins[text]
        return starts


def quotas_of(weights: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """How many samples of a block each weight comes to; the largest remainders get what is over.

    weights: of any sum; those that are not 0 come to one sample at least.
    """
    exact = np.array(weights, np.float64) / float(sum(weights)) * BLOCK_SAMPLES
    quotas = np.floor(exact).astype(np.int64)
    quotas = np.maximum(quotas, (np.array(weights) > 0).astype(np.int64))
    order = np.argsort(quotas - exact, kind="stable")
    for index in range(BLOCK_SAMPLES - int(quotas.sum())):
        quotas[order[index % len(order)]] += 1
    while quotas.sum() > BLOCK_SAMPLES:
        quotas[np.argmax(quotas)] -= 1
    return quotas


def check_window(num_tokens: int, context_length: int) -> None:
    """Make sure that a text is long enough for one window."""
    if context_length < 1:
        raise ConfigError(f"context_length is {context_length}; it must be at least 1")
    if num_tokens < context_length + 1:
        raise DataError(
            f"the text has {num_tokens} tokens, and one window of context_length {context_length} "
            f"takes {context_length + 1}; prepare more text or set a smaller context_length"
        )


def batch_samples(step: int, batch_size: int, rank: int = 0, world_size: int = 1) -> range:
    """The numbers of the samples that one of `world_size` ranks takes at a step.

    The ranks' parts, joined in order, are the samples step * batch_size up to the next step's.
    """
    if batch_size % world_size != 0:
        raise ConfigError(
            f"batch_size {batch_size} cannot be divided among {world_size} ranks: choose a "
            f"multiple, for example {-(-batch_size // world_size) * world_size}"
        )
    count = batch_size // world_size
    first = step * batch_size + rank * count
    return range(first, first + count)


def fixed_windows(
    num_tokens: int, context_length: int, num_windows: int | None = None, seed: int = 0
) -> Starts:
    """Start positions of windows that do not overlap, ascending; the same on every call.

    num_windows: how many; with None, or more than there are, all that fit from the first id on.
    """
    check_window(num_tokens, context_length)
    available = (num_tokens - 1) // context_length
    if num_windows is None or num_windows >= available:
        return np.arange(available, dtype=np.int64) * context_length
    positions = number_samples(0, num_windows)
    epoch = np.zeros(num_windows, np.uint64)
    chosen = permute(seed, _FIXED_WINDOWS, epoch, positions, available)
    return np.sort(chosen.astype(np.int64)) * context_length


def whole_walk(num_tokens: int, context_length: int) -> tuple[Starts, int, int]:
    """Windows that predict every id once, save the first, which nothing precedes.

    Returns the starts of whole windows, and start and number of targets of a shorter last one.
    """
    if num_tokens < 2:
        raise DataError(f"the text has {num_tokens} tokens; at least 2 are needed to predict one")
    num_windows, num_left = divmod(num_tokens - 1, context_length)
    starts = np.arange(num_windows, dtype=np.int64) * context_length
    return starts, num_windows * context_length, num_left


def sliding_windows(
    num_tokens: int, num_predicted: int, context_length: int
) -> Iterator[tuple[int, int, int]]:
    """Windows that predict the last ids of a text once each: begin, end, and how many it predicts.

    What fits into a context is predicted at once. Of more, each id has at least half a context
    before it, or all there is. A window holds its last target: up to context_length + 1 ids.
    """
    done = num_tokens - num_predicted
    end = num_tokens if num_predicted <= context_length else max(done, context_length + 1)
    while done < num_tokens:
        if end > done:
            yield max(0, end - context_length - 1), end, end - done
        done, end = end, min(num_tokens, end + max(1, context_length // 2))


def number_samples(first: int, count: int) -> UInt64:
    """The numbers of `count` samples from `first` on."""
    return np.arange(count, dtype=np.uint64) + np.uint64(first)


class IdArray:
    """Ids in memory, or in a mapped file of the caller's, read as those of shards are."""

    def __init__(self, ids: npt.ArrayLike) -> None:
        # As a plain array: the memmap subclass would look after every slice of itself.
        self._ids = np.asarray(ids)
        self.num_tokens = self._ids.size
        if self._ids.ndim != 1 or self._ids.dtype.kind not in "iu":
            found = f"{self._ids.ndim}-dimensional {self._ids.dtype}"
            raise DataError(f"ids must be a one-dimensional array of integers, not {found}")

    def read(self, begin: int, end: int) -> npt.NDArray[Any]:
        """The ids from `begin` up to `end`."""
        return self._ids[begin:end]

    def read_windows(self, starts: npt.NDArray[np.int64], length: int) -> npt.NDArray[Any]:
        """The rows ids[start : start + length]."""
        return sliding_window_view(self._ids, length)[starts]


Ids = Shards | IdArray | npt.NDArray[Any]


class WindowReader:
    """Reads windows of context_length + 1 ids; ids of shards stay on disk until then."""

    num_parts = 2
    """Inputs and targets."""

    def __init__(self, ids: Ids, context_length: int) -> None:
        self._ids = ids if isinstance(ids, Shards | IdArray) else IdArray(ids)
        self.num_tokens = self._ids.num_tokens
        check_window(self.num_tokens, context_length)
        self.length = context_length + 1

    def read(self, starts: npt.ArrayLike) -> npt.NDArray[Any]:
        """The rows ids[start : start + length], in the order of `starts`, as the ids' type."""
        return self._ids.read_windows(np.asarray(starts, np.int64), self.length)

    def fill(self, target: npt.NDArray[np.int64], starts: npt.ArrayLike) -> None:
        """Write inputs and targets to `target`, (2, windows, context_length)."""
        windows = self.read(starts)
        target[0] = windows[:, :-1]
        target[1] = windows[:, 1:]


def join_shards(parts: Sequence[Shards]) -> Shards:
    """The same split of several folders as one, in their order; a window must not cross."""
    first = parts[0]
    for part in parts[1:]:
        if part.index.end != first.index.end:
            raise DataError(
                f"documents end with {first.index.end.text} in one folder of the mix and with "
                f"{part.index.end.text} in another; prepare them with the same --separator"
            )
    return Shards(first.split, [file for part in parts for file in part.files], first.index)
