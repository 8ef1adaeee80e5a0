"""A counter-based random generator: value n of a seed is computed without the n - 1 before it.

The formulas are our own rather than a library's and never change, because the sample order of every
training run depends on them.

    mix(x)                     the 64-bit finalizer of splitmix64, a bijection
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
# Eight suffice for a thousand positions; for six, all orders are equally likely only with more.
_NUM_ROUNDS = 16


def random_uint64(seed: int | Sequence[int], stream: int, counters: UInt64) -> UInt64:
    """Return 64 random bits per counter, with one seed for all or one for each.

    Different streams of a seed are independent.
    """
    key = stream_keys(seed if isinstance(seed, Sequence) else [seed], stream)
    return _mix(_mix(counters + key) ^ key)


def random_below(seed: int, stream: int, counters: UInt64, bound: int) -> UInt64:
    """Return a number in [0, bound) per counter: the high word of random times bound.

    Probabilities differ by at most a factor of 1 + bound / 2^64.
    """
    return _multiply_high(random_uint64(seed, stream, counters), bound)


def permute(seed: int, stream: int, epochs: UInt64, positions: UInt64, size: int) -> UInt64:
    """Map each position in [0, size) through the permutation of its epoch.

    A position is a cell (left, right) of a grid with slightly more than `size` cells. A Feistel
    network alternately adds a keyed hash of one coordinate to the other; subtraction undoes a
    round, so it is a bijection of the grid. Positions that leave [0, size) go through the network
    again until they are back inside (cycle walking).
    """
    distinct, which = np.unique(epochs, return_inverse=True)
    first = random_uint64(seed, stream, distinct)
    keys = [_mix(first + _wrap((number + 1) * _GOLDEN)) for number in range(_NUM_ROUNDS)]
    width = math.isqrt(size - 1) + 1
    # Even, because rotations of an odd number of cells only generate the even permutations.
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
        # Drop the top bit: a sum that overflows would no longer be a bijection.
        if number % 2 == 0:
            left = (left + (_mix(right ^ key[which]) >> np.uint64(1))) % np.uint64(height)
        else:
            right = (right + (_mix(left ^ key[which]) >> np.uint64(1))) % np.uint64(width)
    return left * np.uint64(width) + right


def check_seed(seed: int) -> int:
    """Return the seed if it fits in 64 bits."""
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 1 << 64:
        raise ConfigError(f"seed {seed!r} is out of range; choose one from 0 to 2**64 - 1")
    return seed


def stream_keys(seeds: Sequence[int], stream: int) -> UInt64:
    """Return the key of each seed in a stream."""
    first = _mix(_wrap(*(check_seed(seed) + _GOLDEN for seed in seeds)))
    return _mix(first + _wrap((stream + 1) * _GOLDEN))


def _wrap(*values: int) -> UInt64:
    """Wrap values to 64 bits, in an array: NumPy warns when scalars overflow, but not arrays."""
    return np.array([value & 0xFFFFFFFFFFFFFFFF for value in values], np.uint64)


def _mix(x: UInt64) -> UInt64:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _multiply_high(values: UInt64, factor: int) -> UInt64:
    """Return the upper 64 bits of the 128-bit products, computed from 32-bit halves."""
    half = np.uint64(32)
    high, low = values >> half, values & _LOW_32
    factor_high, factor_low = np.uint64(factor >> 32), np.uint64(factor & 0xFFFFFFFF)
    cross, other = low * factor_high, high * factor_low
    carry = ((low * factor_low) >> half) + (cross & _LOW_32) + (other & _LOW_32)
    total: UInt64 = high * factor_high + (cross >> half) + (other >> half) + (carry >> half)
    return total
