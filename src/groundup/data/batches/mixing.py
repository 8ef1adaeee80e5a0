"""Several texts in one stream of samples, each with its weight: a pure function of (seed, sample).

Of every block of samples each text has the same number, as its weight says, at positions that a
permutation chooses; which of its own samples come next follows by counting. So any position is
reached at once, and each text keeps its own order and epochs.
"""

from collections.abc import Sequence

import numpy as np

from groundup.data.batches.order import MIXED, Order, Starts, number_samples
from groundup.data.counter_random import check_seed, permute
from groundup.data.shards.reading import Shards
from groundup.errors import ConfigError, DataError

BLOCK_SAMPLES = 10_000
"""Weights are exact to one part in so many."""


class MixedOrder:
    """The orders of several texts that lie one behind the other, mixed by weight."""

    def __init__(self, orders: Sequence[Order], weights: Sequence[float], seed: int) -> None:
        self.num_ids = sum(order.num_ids for order in orders)
        self.context_length = orders[0].context_length
        self.seed = check_seed(seed)
        self.quotas = quotas_of(weights)
        """Samples of each text in a block."""
        self._orders = list(orders)
        self._ends = np.cumsum(self.quotas)
        self._begins = np.cumsum([0, *(order.num_ids for order in orders)])

    def starts(self, first_sample: int, count: int) -> Starts:
        samples = number_samples(first_sample, count)
        blocks, positions = np.divmod(samples, np.uint64(BLOCK_SAMPLES))
        slots = permute(self.seed, MIXED, blocks, positions, BLOCK_SAMPLES).astype(np.int64)
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
    total = float(sum(weights))
    if not total > 0 or min(weights) < 0 or len(weights) > BLOCK_SAMPLES:
        raise ConfigError("the weights of a mix must be 0 or more, and one of them more than 0")
    exact = np.array(weights, np.float64) / total * BLOCK_SAMPLES
    quotas = np.floor(exact).astype(np.int64)
    quotas = np.maximum(quotas, (np.array(weights) > 0).astype(np.int64))
    order = np.argsort(quotas - exact, kind="stable")
    for index in range(BLOCK_SAMPLES - int(quotas.sum())):
        quotas[order[index % len(order)]] += 1
    while quotas.sum() > BLOCK_SAMPLES:
        quotas[np.argmax(quotas)] -= 1
    return quotas


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
