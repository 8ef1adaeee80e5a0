"""A mix of texts: exact weights, each text in its own order, any position reached at once."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundup.config import parse_weights
from groundup.data.batches.order import BLOCK_SAMPLES, MixedOrder, ShuffledEpochs, quotas_of
from groundup.data.batches.windows import join_shards
from groundup.data.prepare import prepare
from groundup.data.shards import open_shards
from groundup.errors import ConfigError, DataError
from groundup.tokenizer import Tokenizer

SIZES = (300, 1000, 50)


def make(weights: list[float], seed: int = 7) -> MixedOrder:
    orders = [ShuffledEpochs(size, 8, seed + number) for number, size in enumerate(SIZES)]
    return MixedOrder(orders, weights, seed)


def texts_of(starts: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.cumsum(SIZES), starts, side="right")


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=6).filter(any))
def test_quotas_fill_a_block_as_the_weights_say(weights: list[float]) -> None:
    quotas = quotas_of(weights)
    assert quotas.sum() == BLOCK_SAMPLES
    for weight, quota in zip(weights, quotas.tolist(), strict=True):
        assert (quota > 0) == (weight > 0) or quota <= len(weights)
        assert abs(quota - weight / sum(weights) * BLOCK_SAMPLES) <= len(weights)


def test_every_block_has_exactly_the_quotas() -> None:
    order = make([0.7, 0.25, 0.05])
    assert order.quotas.tolist() == [7000, 2500, 500]
    for block in range(3):
        starts = order.starts(block * BLOCK_SAMPLES, BLOCK_SAMPLES)
        assert np.bincount(texts_of(starts)).tolist() == [7000, 2500, 500]
    # Within a block they are mixed: no stretch is of one text.
    first = texts_of(order.starts(0, 100))
    assert 50 <= Counter(first.tolist())[0] <= 88 and len(set(first.tolist())) == 3


def test_each_text_is_read_in_its_own_order() -> None:
    order = make([0.5, 0.3, 0.2])
    starts = order.starts(0, 2 * BLOCK_SAMPLES)
    texts, begin = texts_of(starts), 0
    for number, size in enumerate(SIZES):
        own = starts[texts == number] - begin
        expected = ShuffledEpochs(size, 8, 7 + number).starts(0, len(own))
        # Of a block the same samples, at positions that the permutation chose.
        quota = int(order.quotas[number])
        for block in range(2):
            part = slice(block * quota, (block + 1) * quota)
            assert sorted(own[part].tolist()) == sorted(expected[part].tolist())
        assert own.max() + 8 < size
        begin += size


@settings(max_examples=20)
@given(st.integers(0, 10**12), st.integers(0, 20), st.integers(0, 2**64 - 1))
def test_any_part_of_the_stream_is_the_same_alone(first: int, count: int, seed: int) -> None:
    orders = [ShuffledEpochs(size, 8, seed) for size in SIZES]
    order = MixedOrder(orders, [1, 2, 3], seed)
    whole = order.starts(first, count)
    parts = [order.starts(first + number, 1) for number in range(count)]
    assert whole.tolist() == [int(part[0]) for part in parts]
    assert order.starts(first, count).tolist() == whole.tolist()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["stories"], "takes NAME=WEIGHT, such as stories=0.7, got 'stories'"),
        (["a=x"], "got 'a=x'"),
        (["a=-1"], "got 'a=-1'"),
        (["=1"], "got '=1'"),
        (["a=inf"], "got 'a=inf'"),
        (["a=1", "a=2"], "has a twice"),
        (["a=1", "./a=2"], "has ./a twice"),
        (["a=0", "b=0"], "all weights are 0"),
    ],
)
def test_weights_that_cannot_be_are_named(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_weights(words, "--mix")


def test_shards_of_several_folders_lie_one_behind_the_other(tmp_path: Path) -> None:
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
