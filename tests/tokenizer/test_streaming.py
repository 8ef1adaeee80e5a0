"""Streaming: the same ids however the text is split, early, and in constant memory."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest
from oracles import PATTERNS, learn

from groundup.tokenizer import Tokenizer
from groundup.tokenizer.definition import TokenizerDefinition
from groundup.tokenizer.patterns import GPT2, Pattern
from groundup.tokenizer.reference import train_bpe_reference

LINE = "the theme of the thesis: it's thé 字字 😀 don't ABBA 123, and thus then\n"


def make_tokenizer(pattern: Pattern) -> Tokenizer:
    vocab, merges = train_bpe_reference(LINE, 290, pattern=pattern)
    definition = TokenizerDefinition({**vocab, 999: b"<|end|>"}, merges, {"<|end|>": 999}, pattern)
    return Tokenizer.from_definition(definition)


TOKENIZER = make_tokenizer(GPT2)


@hypothesis.given(
    text=st.lists(
        st.one_of(
            st.sampled_from([*"ab '", "\ud83d\ude00", "\ud835\udc00"]),
            st.characters(categories=["Cs"]),
        ),
        max_size=30,
    ).map("".join),
    places=st.lists(st.integers(0, 60), max_size=6),
)
def test_surrogate_pairs_may_be_split_between_pieces(text: str, places: list[int]) -> None:
    for whole in (text, text + "\ud83d\ude00", f"\ud83d\ude00 {text} the \ud83d\ude00 end"):
        ends = sorted(place % (len(whole) + 1) for place in places)
        pieces = [whole[a:b] for a, b in zip([0, *ends], [*ends, len(whole)], strict=True)]
        assert list(TOKENIZER.encode_iterable(pieces)) == TOKENIZER.encode(whole)
        assert list(TOKENIZER.encode_iterable(whole)) == TOKENIZER.encode(whole)


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda one: one.name)
def test_ids_are_yielded_before_the_text_ends(pattern: Pattern) -> None:
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield LINE

    ids = make_tokenizer(pattern).encode_iterable(endless())
    assert read == 0
    for number in range(1000):
        next(ids)
        # A line has at least ten ids; at most two lines are held back.
        assert read <= number / 10 + 3


# The address space may grow by a megabyte. Mapped memory is counted, because resident memory
# depends on how much of the heap happens to be free.
MEMORY_SCRIPT = """
import resource, sys
import psutil
from groundup.tokenizer import Tokenizer

tokenizer = Tokenizer.load(sys.argv[1])

def count_ids(path):
    process = psutil.Process()
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = process.memory_info().vms + 1_000_000
    resource.setrlimit(resource.RLIMIT_AS, (limit, -1))
    try:
        with open(path, encoding="utf-8") as lines:
            return sum(1 for _ in tokenizer.encode_iterable(lines))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)

print(count_ids(sys.argv[2]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="address space is limited on Linux only")
@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="sanitizers map terabytes")
def test_encoding_five_megabytes_takes_less_than_one_megabyte_of_memory(tmp_path: Path) -> None:
    pytest.importorskip("psutil")
    shuffled = random.Random(0)
    with open(tmp_path / "text.txt", "w", encoding="utf-8") as file:
        size = 0
        while size < 5_000_000:
            new = " ".join(f"{shuffled.getrandbits(70):x}" for _ in range(6))
            size += file.write(f"{new}\n{LINE}" + "<|end|>\n" * (size % 9 == 0))
    tokenizer, _ = learn([shuffled.randbytes(20_000).hex().encode()], 3000, ["<|end|>"])
    tokenizer.save(tmp_path / "tokenizer.json")
    paths = [str(tmp_path / "tokenizer.json"), str(tmp_path / "text.txt")]
    command = [sys.executable, "-c", MEMORY_SCRIPT, *paths]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    text = (tmp_path / "text.txt").read_text("utf-8")
    assert int(result.stdout) == len(tokenizer.encode_to_numpy(text))
