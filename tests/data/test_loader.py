"""Windows and batches: their contents, transfer to the device, and the end of the thread."""

import gc
import itertools
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from groundup.data.batches.loader import BatchLoader, get_batch
from groundup.data.batches.order import Ids, ShuffledEpochs, WindowReader
from groundup.data.batches.transfer import transfer_to
from groundup.data.pipeline import read_ahead
from groundup.data.shards.index import ShardIndex
from groundup.data.shards.reading import ShardFile, Shards
from groundup.errors import ConfigError, DataError
from groundup.runtime import set_seed


def make_shards(lengths: list[int], dtype: Any = "uint16") -> Shards:
    """Write shards of these lengths with known pseudorandom ids."""
    ids = scrambled(sum(lengths)).astype(dtype)
    arrays = np.split(ids, np.cumsum(lengths)[:-1])
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number, array in enumerate(arrays):
            array.tofile(path := Path(folder, f"{number}.bin"))
            files.append(ShardFile(path, len(array)))
        return Shards("train", files, ShardIndex.model_construct(dtype=dtype))  # type: ignore[call-arg]


def read_windows(ids: Ids, starts: Any, context_length: int) -> np.ndarray:
    return WindowReader(ids, context_length).read(starts)


def scrambled(num_tokens: int) -> np.ndarray:
    return np.arange(num_tokens) * 40503 % 65536


def ahead_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "read ahead" in thread.name]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    if ahead_threads():
        gc.collect()
    assert not ahead_threads()


# Reading windows


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.data())
def test_windows_are_slices_across_shards(lengths: list[int], data: st.DataObject) -> None:
    whole = scrambled(sum(lengths))
    if len(whole) < 2:
        return
    context_length = data.draw(st.integers(1, len(whole) - 1))
    last = len(whole) - context_length - 1
    starts = data.draw(st.lists(st.integers(0, last), max_size=20))
    expected = [whole[start : start + context_length + 1] for start in starts]
    windows = read_windows(make_shards(lengths), starts, context_length)
    assert windows.dtype == np.uint16 and windows.shape == (len(starts), context_length + 1)
    assert windows.tolist() == [row.tolist() for row in expected]
    assert np.array_equal(windows, read_windows(whole, starts, context_length))


@pytest.mark.parametrize(
    "ids", [np.zeros((4, 4), np.int64), np.zeros(20), np.zeros(20, bool), np.array(["a"] * 20)]
)
def test_other_arrays_are_rejected(ids: Any) -> None:
    with pytest.raises(DataError, match="one-dimensional array of integers"):
        read_windows(ids, [0], 2)


# The loader


@pytest.mark.parametrize(("lengths", "first"), [([1000], 10**12), ([7, 301, 1, 13, 678], 3)])
def test_batches_match_the_order_and_own_their_memory(lengths: list[int], first: int) -> None:
    order = ShuffledEpochs(1000, 12, 5)
    loader = BatchLoader(make_shards(lengths), order, 6)
    with loader.batches(first, num_steps=20) as batches:
        taken = list(batches)
    with loader.batches(first, 0) as none:
        assert list(none) == []
    assert not ahead_threads()
    assert [batch.step for batch in taken] == list(range(first, first + 20))
    for batch in taken:
        windows = read_windows(scrambled(1000), order.starts(batch.step * 6, 6), 12)
        assert batch.inputs.dtype == batch.targets.dtype == torch.int64
        assert batch.inputs.is_contiguous() and batch.targets.is_contiguous()
        assert np.array_equal(batch.inputs, windows[:, :-1])
        assert np.array_equal(batch.targets, windows[:, 1:])
        assert np.array_equal(loader.starts(batch.step), order.starts(batch.step * 6, 6))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_rank_batches_concatenate_to_the_global_batch(world_size: int) -> None:
    shards, order = make_shards([123, 456, 421]), ShuffledEpochs(1000, 9, 1)
    with BatchLoader(shards, order, 8).batches(50, 4) as batches:
        whole = [batch.inputs for batch in batches]
    ranks = []
    for rank in range(world_size):
        loader = BatchLoader(shards, order, 8, rank=rank, world_size=world_size)
        assert loader.rank_batch_size == 8 // world_size
        with loader.batches(50, 4) as batches:
            ranks.append([batch.inputs for batch in batches])
    joined = [torch.cat(shares) for shares in zip(*ranks, strict=True)]
    assert all(torch.equal(one, other) for one, other in zip(whole, joined, strict=True))


# Threads


def endless() -> BatchLoader:
    return BatchLoader(make_shards([1000]), ShuffledEpochs(1000, 9, 1), 4)


def test_thread_ends_with_the_block() -> None:
    with pytest.raises(ValueError, match="the step failed"), endless().batches() as batches:
        assert len(ahead_threads()) == 1
        for batch in batches:
            if batch.step == 3:
                raise ValueError("the step failed")
    assert not ahead_threads()


def test_thread_errors_are_raised_in_order() -> None:
    disk_is_gone = OSError("the disk is gone")

    class Failing(ShuffledEpochs):
        def starts(self, first_sample: int, count: int) -> np.ndarray:
            if first_sample >= 12:
                raise disk_is_gone
            return super().starts(first_sample, count)

    with BatchLoader(make_shards([1000]), Failing(1000, 9, 1), 4).batches() as batches:
        assert [next(batches).step for _ in range(3)] == [0, 1, 2]
        with pytest.raises(OSError, match="the disk is gone") as caught:
            next(batches)
        assert caught.value is disk_is_gone and list(batches) == []
    assert not ahead_threads()


def test_prefetching_is_bounded() -> None:
    asked: list[int] = []
    with read_ahead(map(asked.append, itertools.count()), 2) as items:
        next(items)
    assert len(asked) <= 5


# get_batch


def test_get_batch_samples_windows_by_the_seed_and_needs_one() -> None:
    sampled = []
    for seed in (1, 1, 2):
        set_seed(seed)
        inputs, targets = get_batch(np.arange(100), 300, 7, "cpu")
        assert inputs.shape == (300, 7) and inputs.dtype == targets.dtype == torch.int64
        assert torch.equal(targets, inputs + 1)
        assert torch.equal(inputs, inputs[:, :1] + torch.arange(7))
        sampled.append(inputs)
    assert set(sampled[0][:, 0].tolist()) > {0, 92} and int(sampled[0][:, 0].max()) == 92
    assert torch.equal(sampled[0], sampled[1]) and not torch.equal(sampled[0], sampled[2])
    inputs, targets = get_batch(np.arange(8), 3, 7, "cpu")
    assert inputs.tolist() == [list(range(7))] * 3 and targets.tolist() == [list(range(1, 8))] * 3
    with pytest.raises(DataError, match=r"has 7 tokens.* needs 8"):
        get_batch(np.arange(7), 3, 7, "cpu")
    with pytest.raises(ConfigError, match="batch_size is 0"):
        get_batch(np.arange(8), 0, 7, "cpu")
    with pytest.raises((RuntimeError, AssertionError), match=r"CUDA|NVIDIA"):
        get_batch(np.arange(100), 4, 7, "cuda:99")


# On the GPU


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_gpu_batches_match_the_cpu(device: str) -> None:
    shards, order = make_shards([40_001, 59_999]), ShuffledEpochs(100_000, 64, 1)
    with BatchLoader(shards, order, 512).batches(0, 60) as on_cpu:
        expected = list(on_cpu)
    busy = torch.ones(4096, 4096, device=device)
    with BatchLoader(shards, order, 512, device=device).batches(0, 60) as given:
        sums = []
        for batch in given:
            assert batch.inputs.device == torch.device("cuda:0")
            busy = busy @ busy * 1e-4
            sums.append((batch.inputs.sum(), (batch.inputs * batch.targets).sum()))
            kept = batch
    assert torch.equal(kept.targets.cpu(), expected[-1].targets)
    for (total, product), batch in zip(sums, expected, strict=True):
        assert int(total) == int(batch.inputs.sum())
        assert int(product) == int((batch.inputs * batch.targets).sum())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_gpu_copies_use_pinned_memory_and_are_not_captured_in_a_concurrent_graph() -> None:
    transfer = transfer_to(torch.device("cuda:0"), (4, 9))
    for _ in range(3):
        buffer = transfer.host_buffer()
        assert buffer.shape == (4, 9) and buffer.is_pinned()
        transfer.receive(transfer.send(buffer.zero_()))
    device, number = torch.device("cuda:0"), torch.zeros((), device="cuda:0")
    # More than torch's pool of streams.
    for step in range(40):
        transfer, graph = transfer_to(device, (4,)), torch.cuda.CUDAGraph()
        buffer = transfer.host_buffer().fill_(step)
        recording = torch.cuda.graph(graph, capture_error_mode="thread_local")
        with ThreadPoolExecutor(1) as thread, recording:
            number.add_(1)
            sent = thread.submit(transfer.send, buffer).result()
        assert transfer.receive(sent).tolist() == [step] * 4
