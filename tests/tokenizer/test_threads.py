"""A tokenizer in many Python threads: correct results, and the GIL is released."""

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from oracles import END

from groundup._native import WordCounter, find_documents, find_invalid_utf8
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.patterns import GPT2, O200K
from groundup.tokenizer.reference import train_bpe_reference

CORPUS = "the theme of the thesis, it's then 123 there\n\n  and thé 字字 😀 thus\nsome more of it. "
VOCAB, MERGES = train_bpe_reference(CORPUS * 2, 320)


def make_tokenizer() -> Tokenizer:
    return Tokenizer(VOCAB, MERGES, [END])


def make_texts(num_texts: int, seed: int) -> list[str]:
    shuffled = random.Random(seed)
    words = [*CORPUS.split(" "), END, *(f"new{number}" for number in range(3000))]
    return [" ".join(shuffled.choices(words, k=shuffled.randrange(60))) for _ in range(num_texts)]


@pytest.fixture
def switch_interval(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set the seconds after which a thread must release the GIL."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(request.param)
    yield
    sys.setswitchinterval(interval)


EAGER = pytest.mark.parametrize("switch_interval", [1e-6], indirect=True)
NEVER = pytest.mark.parametrize("switch_interval", [1000], indirect=True)


@EAGER
@pytest.mark.usefixtures("switch_interval")
def test_threads_can_share_a_tokenizer() -> None:
    tokenizer = make_tokenizer()
    alone = make_tokenizer()
    texts = make_texts(150, 0)
    expected = [alone.encode(text) for text in texts]
    whole, whole_ids = "".join(texts), alone.encode("".join(texts))

    def work(seed: int) -> None:
        shuffled = random.Random(seed)
        for _ in range(40):
            place = shuffled.randrange(len(texts))
            assert tokenizer.encode(texts[place]) == expected[place]
            assert tokenizer.decode(expected[place]) == texts[place]
        assert tokenizer.encode(whole) == whole_ids
        assert list(tokenizer.encode_iterable(texts)) == whole_ids
        ids, offsets = tokenizer.encode_batch(texts, 1 + seed % 3)
        for place in range(0, len(texts), 17):
            assert ids[offsets[place] : offsets[place + 1]].tolist() == expected[place]

    # More threads than workspaces in the pool.
    with ThreadPoolExecutor(70) as pool:
        list(pool.map(work, range(70)))


def is_free_during(work: Callable[[], object]) -> bool:
    """Whether another Python thread ran during `work`, although threads need not yield."""
    started, seen, finished = threading.Event(), threading.Event(), threading.Event()
    observations: list[bool] = []

    def observe() -> None:
        started.wait()
        observations.append(finished.is_set())
        seen.set()

    thread = threading.Thread(target=observe)
    thread.start()
    started.set()
    work()
    finished.set()
    seen.wait()
    thread.join()
    return not observations[0]


LARGE = "".join(make_texts(3000, 2)) * 5
LARGE_BYTES = LARGE.encode()
TOKENIZER = make_tokenizer()
IDS = TOKENIZER.encode_to_numpy(LARGE)
BOUNDS = np.array([[0, len(LARGE_BYTES)]])
COUNTER = WordCounter(GPT2.splitter, [END.encode()], 1)
COUNTER.add_text(LARGE_BYTES)
WORKS: dict[str, Callable[[], object]] = {
    "encode": lambda: TOKENIZER.encode(LARGE),
    "encode_to_numpy": lambda: TOKENIZER.encode_to_numpy(LARGE),
    "encode_batch": lambda: TOKENIZER.encode_batch([LARGE], 1),
    "encode_batch on two threads": lambda: TOKENIZER.encode_batch([LARGE, LARGE], 2),
    "encode_documents": lambda: TOKENIZER.encode_documents(LARGE_BYTES, BOUNDS, 1),
    "decode": lambda: TOKENIZER.decode(IDS),
    "count words": lambda: COUNTER.add_text(LARGE_BYTES),
    "train": lambda: COUNTER.train(3000),
    "split": lambda: O200K.splitter.split(LARGE),
    "find_invalid_utf8": lambda: find_invalid_utf8(LARGE_BYTES * 20),
    "find_documents": lambda: find_documents(LARGE_BYTES * 20, [END.encode()]),
}


@NEVER
@pytest.mark.usefixtures("switch_interval")
@pytest.mark.parametrize("name", WORKS)
def test_the_native_core_releases_the_gil(name: str) -> None:
    assert not is_free_during(lambda: sum(range(100_000)))
    # On a busy machine the other thread may wake up too late, but not every time.
    end = time.monotonic() + 60
    assert any(is_free_during(WORKS[name]) for _ in iter(lambda: time.monotonic() < end, False))


class _Nosy:
    """Counts that access the counter while it reads them."""

    def __init__(self, counter: WordCounter) -> None:
        self._counter = counter

    def __getitem__(self, index: int) -> int:
        self._counter.items()
        return 1

    def __len__(self) -> int:
        return 1


def test_a_counter_in_use_rejects_other_threads() -> None:
    counter = WordCounter(GPT2.splitter, [], 1)
    with pytest.raises(ValueError, match="another thread is using this object"):
        counter.add_words([b"a"], _Nosy(counter))  # type: ignore[arg-type]
    counter.add_words([b"a"], [2])
    assert counter.items() == {b"a": 2}


def test_a_running_thread_does_not_disturb_process_exit() -> None:
    program = """
import threading
from groundup._native import find_invalid_utf8
text, begun = b"text " * 20_000, threading.Event()
def work():
    while True:
        find_invalid_utf8(text)
        begun.set()
threading.Thread(target=work, daemon=True).start()
begun.wait()
"""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
