"""The random numbers of a seed, each computed from its place: no state, no order of drawing."""

from __future__ import annotations

import numpy as np

from groundup.data.counter_random import random_uint64

# Any number, as long as it never changes: texts hang on it.
STREAM = 0x7E87
_BLOCK = 128


class Uniforms:
    """`uniforms[i]` is the number in [0, 1) that decides the i-th new id of a seed's text."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._block: list[float] = []
        self._first = 0

    def __getitem__(self, place: int) -> float:
        if not self._first <= place < self._first + len(self._block):
            # One call computes many, since a call costs far more than a number.
            self._first = place - place % _BLOCK
            self._block = uniforms(self._seed, self._first, _BLOCK)
        return self._block[place - self._first]


def uniforms(seed: int, first: int, num: int) -> list[float]:
    """The numbers at `num` places from `first` on, of 32 bits each."""
    places = np.arange(first, first + num, dtype=np.uint64)
    bits = random_uint64(seed, STREAM, places) >> np.uint64(32)
    numbers: list[float] = (bits.astype(np.float64) * 2.0**-32).tolist()
    return numbers
