"""The sample order: independent of ranks and resumes, with random access."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundup.config import parse_weights
from groundup.data.batches.order import (
    BLOCK_SAMPLES,
    MixedOrder,
    ShuffledEpochs,
    batch_samples,
    consecutive_windows,
    fixed_windows,
    join_shards,
    quotas_of,
    sliding_windows,
)
from groundup.data.counter_random import permute, random_uint64
from groundup.data.prepare import prepare
from groundup.data.shards import open_shards
from groundup.errors import ConfigError, DataError
from groundup.tokenizer import Tokenizer

seeds = st.integers(0, 2**64 - 1)


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def test_random_values_permutations_and_orders_never_change() -> None:
    assert [f"{value:016x}" for value in random_uint64(0, 0, numbers(0, 1, 2)).tolist()] == [
        "195ad44b598ff026",
        "31e398a3c1300169",
        "78dd684a262d5076",
    ]
    assert random_uint64(2**64 - 1, 3, numbers(2**64 - 1))[0] == 0x9B2D71743A752706
    epochs, positions = np.repeat(numbers(0, 1), 10), np.tile(np.arange(10, dtype=np.uint64), 2)
    moved = permute(0, 0, epochs, positions, 10).reshape(2, 10)
    assert moved.tolist() == [[5, 7, 6, 8, 4, 1, 2, 3, 9, 0], [4, 9, 3, 2, 1, 8, 5, 7, 0, 6]]
    assert ShuffledEpochs(10**9, 256, 42).starts(0, 3).tolist() == [515703689, 33798537, 150486921]
    assert ShuffledEpochs(10**9, 256, 42).starts(10**15, 1).tolist() == [864452842]
    assert fixed_windows(10**6, 256, 3, 42).tolist() == [47360, 242176, 480512]


@given(seeds, st.integers(1, 400), st.integers(0, 2**40))
def test_permutations_are_bijections(seed: int, size: int, epoch: int) -> None:
    epochs = np.full(size, epoch, np.uint64)
    moved = permute(seed, 0, epochs, np.arange(size, dtype=np.uint64), size)
    assert sorted(moved.tolist()) == list(range(size))


# The orders


@given(st.integers(2, 2000), st.data(), seeds, st.integers(0, 20) | st.integers(0, 2**50))
def test_every_window_is_read_once_per_epoch(
    num_tokens: int, data: st.DataObject, seed: int, epoch: int
) -> None:
    context_length = data.draw(st.integers(1, num_tokens - 1))
    order = ShuffledEpochs(num_tokens, context_length, seed)
    starts = order.starts(epoch * order.num_windows, order.num_windows)
    assert starts.dtype == np.int64
    assert starts.min() >= 0 and starts.max() <= num_tokens - context_length - 1
    assert np.all(np.diff(np.sort(starts)) == context_length)
    # Ids left out are before the first or after the last window: fewer than two windows.
    assert num_tokens - 1 - len(starts) * context_length < max(2 * context_length - 1, 1)


def test_epochs_differ_in_order_and_offset() -> None:
    order = ShuffledEpochs(10_000, 10, 0)
    epochs = [order.starts(number * order.num_windows, order.num_windows) for number in range(40)]
    assert len({tuple((starts // 10).tolist()) for starts in epochs}) == 40
    assert {int(starts[0]) % 10 for starts in epochs} == set(range(10))


@pytest.mark.parametrize("num_tokens", [11, 12, 20, 21, 25, 37, 100])
def test_every_id_is_eventually_predicted(num_tokens: int) -> None:
    order = ShuffledEpochs(num_tokens, 10, 4)
    starts = order.starts(0, 200 * order.num_windows)
    predicted = np.unique(starts[:, None] + np.arange(1, 11))
    assert predicted.tolist() == list(range(1, num_tokens))


# Validation


@given(st.integers(2, 3000), st.data(), seeds)
def test_fixed_windows_are_distinct_and_do_not_overlap(
    num_tokens: int, data: st.DataObject, seed: int
) -> None:
    context_length = data.draw(st.integers(1, num_tokens - 1))
    num_windows = data.draw(st.integers(1, 400))
    starts = fixed_windows(num_tokens, context_length, num_windows, seed)
    assert len(starts) == min(num_windows, (num_tokens - 1) // context_length)
    assert np.all(np.diff(starts) >= context_length)
    assert starts[0] >= 0 and starts[-1] + context_length + 1 <= num_tokens
    assert np.array_equal(starts, fixed_windows(num_tokens, context_length, num_windows, seed))
    every = np.arange((num_tokens - 1) // context_length) * context_length
    assert np.array_equal(fixed_windows(num_tokens, context_length), every)
    assert set(starts.tolist()) <= set(every.tolist())


@given(st.integers(2, 500), st.integers(1, 600))
def test_consecutive_windows_predict_every_id_once(num_tokens: int, context_length: int) -> None:
    starts, tail_start, tail_length = consecutive_windows(num_tokens, context_length)
    predicted = [start + np.arange(1, context_length + 1) for start in starts]
    predicted.append(tail_start + np.arange(1, tail_length + 1))
    assert np.concatenate(predicted).tolist() == list(range(1, num_tokens))
    assert tail_length < context_length


# Mistakes


def test_invalid_window_arguments_are_rejected() -> None:
    ShuffledEpochs(257, 256, 0).starts(0, 10)
    for make, error, message in (
        (lambda: ShuffledEpochs(256, 256, 0), DataError, "256 tokens.* needs 257"),
        (lambda: ShuffledEpochs(256, 0, 0), ConfigError, "context_length is 0"),
        (lambda: ShuffledEpochs(100, 5, -1), ConfigError, "seed"),
        (lambda: ShuffledEpochs(100, 5, 2**64), ConfigError, "seed"),
        (lambda: fixed_windows(256, 256), DataError, "257"),
        (lambda: consecutive_windows(1, 4), DataError, "has 1 tokens"),
        (lambda: batch_samples(0, 10, 0, 4), ConfigError, "batch_size 10 .* for example 12"),
    ):
        with pytest.raises(error, match=message):
            make()


@given(st.integers(1, 60), st.integers(0, 59), st.integers(1, 20))
def test_sliding_windows_predict_each_id_once_with_half_a_context(
    num_tokens: int, num_predicted: int, context_length: int
) -> None:
    num_predicted = min(num_predicted, num_tokens - 1)
    windows = list(sliding_windows(num_tokens, num_predicted, context_length))
    targets = [target for _, end, count in windows for target in range(end - count, end)]
    assert targets == list(range(num_tokens - num_predicted, num_tokens))
    for begin, end, count in windows:
        assert end - begin <= context_length + 1
        num_before_first = end - count - begin
        if num_predicted > context_length:
            assert windows[0][1] > context_length
            assert num_before_first >= min(end - count, max(1, context_length // 2))
        else:
            # One window, with as much context before the targets as fits.
            assert len(windows) == 1 and begin == max(0, num_tokens - context_length - 1)


# Mixes

SIZES = (300, 1000, 50)


def mixed(weights: list[float], seed: int = 7) -> MixedOrder:
    orders = [ShuffledEpochs(size, 8, seed + number) for number, size in enumerate(SIZES)]
    return MixedOrder(orders, weights, seed)


def texts_of(starts: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.cumsum(SIZES), starts, side="right")


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=6).filter(any))
def test_quotas_are_proportional_to_weights(weights: list[float]) -> None:
    quotas = quotas_of(weights)
    assert quotas.sum() == BLOCK_SAMPLES
    for weight, quota in zip(weights, quotas.tolist(), strict=True):
        assert (quota > 0) == (weight > 0) or quota <= len(weights)
        assert abs(quota - weight / sum(weights) * BLOCK_SAMPLES) <= len(weights)


def test_each_text_is_read_in_its_own_order() -> None:
    order = mixed([0.5, 0.3, 0.2])
    starts = order.starts(0, 2 * BLOCK_SAMPLES)
    texts, begin = texts_of(starts), 0
    # Within a block they are mixed: no stretch is of one text.
    assert order.quotas.tolist() == [5000, 3000, 2000] and np.bincount(texts[:60]).max() < 50
    for number, size in enumerate(SIZES):
        own = starts[texts == number] - begin
        expected = ShuffledEpochs(size, 8, 7 + number).starts(0, len(own))
        # The same samples per block, at permuted positions.
        quota = int(order.quotas[number])
        for block in range(2):
            part = slice(block * quota, (block + 1) * quota)
            assert sorted(own[part].tolist()) == sorted(expected[part].tolist())
        assert own.max() + 8 < size
        begin += size


@given(st.integers(0, 10**12), st.integers(0, 20), st.integers(0, 2**64 - 1))
def test_mixed_order_has_random_access(first: int, count: int, seed: int) -> None:
    orders = [ShuffledEpochs(size, 8, seed) for size in SIZES]
    for order in (MixedOrder(orders, [1, 2, 3], seed), orders[1]):
        parts = [order.starts(first + number, 1) for number in range(count)]
        assert order.starts(first, count).tolist() == [int(part[0]) for part in parts]


@pytest.mark.parametrize("words", ["stories", "a=x", "a=-1", "=1", "a=inf", "a=1 ./a=2", "a=0 b=0"])
def test_invalid_weights_are_rejected(words: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.mix"):
        parse_weights(words.split())


def test_shards_of_several_folders_are_concatenated(tmp_path: Path) -> None:
    tokenizer = Tokenizer({i: bytes([i]) for i in range(256)}, [], ["<|a|>", "<|b|>"])
    for name, end in (("one", "<|a|>"), ("two", "<|a|>"), ("three", "<|b|>")):
        (tmp_path / f"{name}.txt").write_text(name * 30)
        text = tmp_path / f"{name}.txt"
        prepare([text], tokenizer, tmp_path / name, separator=end, validation_fraction=0)
    one, two, three = (open_shards(tmp_path / name) for name in ("one", "two", "three"))
    joined = join_shards([one, two])
    assert joined[:].tolist() == [*one[:].tolist(), *two[:].tolist()]
    with pytest.raises(DataError, match=r"<\|a\|> in one folder .* <\|b\|> in another"):
        join_shards([one, three])
