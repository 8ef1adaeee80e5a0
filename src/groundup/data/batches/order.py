"""The order in which windows of a text are read: sample n is a pure function of (seed, n).

The stream of samples does not depend on ranks, threads or resumes, and allows random access. A
window has context_length + 1 ids, the last of which is only a target. `loader` makes the batches.
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

# Independent random streams of a seed; changing a number changes the sample order of every run.
_, _EPOCH_OFFSETS, _EPOCH_SHUFFLES, _FIXED_WINDOWS, _MIXED = range(5)

BLOCK_SAMPLES = 10_000
"""Samples per block of a mix: the resolution of its weights."""


class SampleOrder(Protocol):
    """An infinite sequence of windows over a text of `num_tokens` ids."""

    @property
    def num_tokens(self) -> int: ...
    @property
    def context_length(self) -> int: ...
    def starts(self, first_sample: int, count: int) -> Starts:
        """Return the window starts of samples first_sample … first_sample + count - 1."""
        ...


class ShuffledEpochs:
    """Consecutive windows, each once per epoch, reshuffled every epoch.

    Each epoch's windows start at a different random offset, so that every id is eventually seen; in
    exchange, an epoch leaves out up to two windows of ids.
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
        """Return the window starts of the given sample numbers."""
        epochs, positions = np.divmod(samples, np.uint64(self.num_windows))
        num_offsets = self.num_tokens - self.num_windows * self.context_length
        offsets = random_below(self.seed, _EPOCH_OFFSETS, epochs, num_offsets)
        windows = permute(self.seed, _EPOCH_SHUFFLES, epochs, positions, self.num_windows)
        return (offsets + windows * np.uint64(self.context_length)).astype(np.int64)


class MixedOrder:
    """Mixes the orders of several concatenated texts by weight.

    Every block has the same number of samples from each text, proportional to its weight, at
    randomly permuted positions. A text's own sample number follows from its quota per block, so
    random access stays cheap, and each text keeps its own order and epochs.
    """

    def __init__(
        self, orders: Sequence[ShuffledEpochs], weights: Sequence[float], seed: int
    ) -> None:
        self.num_tokens = sum(order.num_tokens for order in orders)
        self.context_length = orders[0].context_length
        self.seed = check_seed(seed)
        self.quotas = quotas_of(weights)
        """Samples per block from each text."""
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
    """Return the samples per block for each weight, by the largest-remainder method.

    Weights need not sum to 1; each nonzero weight gets at least one sample.
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
    """Check that a text is long enough for one window."""
    if context_length < 1:
        raise ConfigError(f"context_length is {context_length}; it must be at least 1")
    if num_tokens < context_length + 1:
        raise DataError(
            f"the text has {num_tokens} tokens, but a window of context_length {context_length} "
            f"needs {context_length + 1}; prepare more text or set a smaller context_length"
        )


def batch_samples(step: int, batch_size: int, rank: int = 0, world_size: int = 1) -> range:
    """Return the sample numbers of one rank's batch at a step.

    In rank order, they are contiguous from step * batch_size.
    """
    if batch_size % world_size != 0:
        raise ConfigError(
            f"batch_size {batch_size} is not divisible by the {world_size} ranks; choose a "
            f"multiple, for example {-(-batch_size // world_size) * world_size}"
        )
    count = batch_size // world_size
    first = step * batch_size + rank * count
    return range(first, first + count)


def fixed_windows(
    num_tokens: int, context_length: int, num_windows: int | None = None, seed: int = 0
) -> Starts:
    """Return the sorted starts of non-overlapping windows, sampled by `seed`.

    num_windows: None, or more than there are, returns all.
    """
    check_window(num_tokens, context_length)
    available = (num_tokens - 1) // context_length
    if num_windows is None or num_windows >= available:
        return np.arange(available, dtype=np.int64) * context_length
    positions = number_samples(0, num_windows)
    epoch = np.zeros(num_windows, np.uint64)
    chosen = permute(seed, _FIXED_WINDOWS, epoch, positions, available)
    return np.sort(chosen.astype(np.int64)) * context_length


def consecutive_windows(num_tokens: int, context_length: int) -> tuple[Starts, int, int]:
    """Cut a text into windows that together predict every id but the first once.

    Returns the starts of the full windows, and start and number of targets of a shorter last one.
    """
    if num_tokens < 2:
        raise DataError(f"the text has {num_tokens} tokens; it needs at least 2 to predict one")
    num_windows, num_left = divmod(num_tokens - 1, context_length)
    starts = np.arange(num_windows, dtype=np.int64) * context_length
    return starts, num_windows * context_length, num_left


def sliding_windows(
    num_tokens: int, num_predicted: int, context_length: int
) -> Iterator[tuple[int, int, int]]:
    """Yield begin, end and number of targets of windows that predict each of the last ids once.

    Ids that fit in one context are predicted by one window. Otherwise each id is predicted from at
    least half a context, or from all ids before it. Windows include the last target, so they have
    up to context_length + 1 ids.
    """
    done = num_tokens - num_predicted
    end = num_tokens if num_predicted <= context_length else max(done, context_length + 1)
    while done < num_tokens:
        if end > done:
            yield max(0, end - context_length - 1), end, end - done
        done, end = end, min(num_tokens, end + max(1, context_length // 2))


def number_samples(first: int, count: int) -> UInt64:
    """Return the sample numbers first … first + count - 1."""
    return np.arange(count, dtype=np.uint64) + np.uint64(first)


class IdArray:
    """Ids in memory or in the caller's memmap, with the reading methods of `Shards`."""

    def __init__(self, ids: npt.ArrayLike) -> None:
        # A plain array: the memmap subclass makes every slice slower.
        self._ids = np.asarray(ids)
        self.num_tokens = self._ids.size
        if self._ids.ndim != 1 or self._ids.dtype.kind not in "iu":
            found = f"{self._ids.ndim}-dimensional {self._ids.dtype}"
            raise DataError(f"ids must be a one-dimensional array of integers, not {found}")

    def read(self, begin: int, end: int) -> npt.NDArray[Any]:
        """Return ids[begin:end]."""
        return self._ids[begin:end]

    def read_windows(self, starts: npt.NDArray[np.int64], length: int) -> npt.NDArray[Any]:
        """Return the rows ids[start : start + length]."""
        return sliding_window_view(self._ids, length)[starts]


Ids = Shards | IdArray | npt.NDArray[Any]


class WindowReader:
    """Reads windows of context_length + 1 ids."""

    num_parts = 2
    """Inputs and targets."""

    def __init__(self, ids: Ids, context_length: int) -> None:
        self._ids = ids if isinstance(ids, Shards | IdArray) else IdArray(ids)
        self.num_tokens = self._ids.num_tokens
        check_window(self.num_tokens, context_length)
        self.length = context_length + 1

    def read(self, starts: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return the windows at `starts`, in the dtype of the ids."""
        return self._ids.read_windows(np.asarray(starts, np.int64), self.length)

    def fill(self, target: npt.NDArray[np.int64], starts: npt.ArrayLike) -> None:
        """Write inputs and targets into `target`, (2, windows, context_length)."""
        windows = self.read(starts)
        target[0] = windows[:, :-1]
        target[1] = windows[:, 1:]


def join_shards(parts: Sequence[Shards]) -> Shards:
    """Concatenate one split of several folders; windows must not cross from one to the next."""
    first = parts[0]
    for part in parts[1:]:
        if part.index.end != first.index.end:
            raise DataError(
                f"documents end with {first.index.end.text} in one folder of the mix but with "
                f"{part.index.end.text} in another; prepare them with the same --separator"
            )
    return Shards(first.split, [file for part in parts for file in part.files], first.index)
