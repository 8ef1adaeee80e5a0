"""Randomness without state: the value number n of a seed is computed, without the n - 1 before it.

The formulas are ours and never change, because the order of every training run hangs on them; no
library's generator stands between a seed and its values. What the values mean is left to `order`.

    mix(x)                     the 64-bit finaliser of splitmix64, a bijection
    key(seed, stream)        = mix(mix(seed + G) + (stream + 1) G),   G = 2^64 / golden ratio
    random(seed, stream, n)  = mix(mix(n + key) xor key)
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from groundup.errors import ConfigError

UInt64 = npt.NDArray[np.uint64]

_GOLDEN = 0x9E3779B97F4A7C15
_LOW_32 = np.uint64(0xFFFFFFFF)
# Eight do for a thousand positions; it takes more until all orders of six are equally likely.
_NUM_ROUNDS = 16


def random_uint64(seed: int | Sequence[int], stream: int, counters: UInt64) -> UInt64:
    """64 random bits for every counter, all of one seed or each of its own.

    Streams of one seed have nothing to do with each other.
    """
    key = stream_keys(seed if isinstance(seed, Sequence) else [seed], stream)
    return _mix(_mix(counters + key) ^ key)


def random_below(seed: int, stream: int, counters: UInt64, bound: int) -> UInt64:
    """A number in [0, bound) for every counter, the high word of random times bound.

    No number is likelier than another by more than a factor of 1 + bound / 2^64.
    """
    return _multiply_high(random_uint64(seed, stream, counters), bound)


def permute(seed: int, stream: int, epochs: UInt64, positions: UInt64, size: int) -> UInt64:
    """Where each position in [0, size) goes in the permutation that belongs to its epoch.

    A position is a point (left, right) of a grid with `size` cells and a few more. A Feistel
    network adds a keyed hash of one coordinate to the other, alternating, which is undone by
    subtracting and so a bijection of the grid. What lands on one of the few cells outside goes
    through again until it does not: that walks along a cycle which began inside.
    """
    distinct, which = np.unique(epochs, return_inverse=True)
    first = random_uint64(seed, stream, distinct)
    keys = [_mix(first + _wrap((number + 1) * _GOLDEN)) for number in range(_NUM_ROUNDS)]
    width = math.isqrt(size - 1) + 1
    # Even, because rotations of an odd number of cells can only make the even permutations.
    height = 2 * -(-size // (2 * width))
    moved = _permute_grid(keys, which, positions, height, width)
    while len(outside := np.flatnonzero(moved >= np.uint64(size))):
        moved[outside] = _permute_grid(keys, which[outside], moved[outside], height, width)
    return moved


def _permute_grid(
    keys: list[UInt64], which: npt.NDArray[np.intp], positions: UInt64, height: int, width: int
) -> UInt64:
    left: UInt64 = positions // np.uint64(width)
    right: UInt64 = positions % np.uint64(width)
    for number, key in enumerate(keys):
        # The top bit is dropped, as a sum that wraps around would not be a bijection any more.
        if number % 2 == 0:
            left = (left + (_mix(right ^ key[which]) >> np.uint64(1))) % np.uint64(height)
        else:
            right = (right + (_mix(left ^ key[which]) >> np.uint64(1))) % np.uint64(width)
    return left * np.uint64(width) + right


def check_seed(seed: int) -> int:
    """The seed, if 64 bits hold it."""
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 1 << 64:
        raise ConfigError(f"seed {seed!r} is out of range; choose one from 0 to 2**64 - 1")
    return seed


def stream_keys(seeds: Sequence[int], stream: int) -> UInt64:
    """What decides the values of each seed in a stream."""
    first = _mix(_wrap(*(check_seed(seed) + _GOLDEN for seed in seeds)))
    return _mix(first + _wrap((stream + 1) * _GOLDEN))


def _wrap(*values: int) -> UInt64:
    """Elements rather than scalars: NumPy warns when scalars wrap around, never for arrays."""
    return np.array([value & 0xFFFFFFFFFFFFFFFF for value in values], np.uint64)


def _mix(x: UInt64) -> UInt64:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _multiply_high(values: UInt64, factor: int) -> UInt64:
    """The upper 64 of the 128 bits of values times factor, by hand in halves of 32 bits."""
    half = np.uint64(32)
    high, low = values >> half, values & _LOW_32
    factor_high, factor_low = np.uint64(factor >> 32), np.uint64(factor & 0xFFFFFFFF)
    cross, other = low * factor_high, high * factor_low
    carry = ((low * factor_low) >> half) + (cross & _LOW_32) + (other & _LOW_32)
    total: UInt64 = high * factor_high + (cross >> half) + (other >> half) + (carry >> half)
    return total
