"""Plain text: exact splitting at separators, invalid bytes, streams, and bounded memory."""

import gzip
import os
import random
import sys
import tracemalloc
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest

from groundup.errors import DataError
from groundup.text_files import Part, Reading, find_sources, read_document_batches
from groundup.text_files import read as read_part

from .conftest import PACKERS, SEPARATOR, TEXTS, documents_of, read

PLAIN = SEPARATOR.join(TEXTS).encode()


def split_slowly(text: bytes, separators: list[bytes]) -> list[bytes]:
    """The definition: from the left, the longest separator at each position ends a document."""
    documents, current, position = [], b"", 0
    longest_first = sorted(separators, key=len, reverse=True)
    while position < len(text):
        match = next((s for s in longest_first if text.startswith(s, position)), None)
        if match is None:
            current += text[position : position + 1]
        else:
            documents.append(current)
            current = b""
        position += len(match) if match else 1
    return [document for document in [*documents, current] if document]


@hypothesis.given(
    text=st.lists(st.sampled_from(["a", "b", "é", "\n", "|", "|ab|"]), min_size=1).map("".join),
    # Some share prefixes, or end with the prefix of another.
    separators=st.sampled_from(
        [(), ("|",), ("|", "|ab|"), ("||", "|"), ("ab", "b|"), ("|a", "ab")]
    ),
    packing=st.sampled_from(["", ".gz"]),
)
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
def test_batches_match_the_definition(
    tmp_path: Path, text: str, separators: tuple[str, ...], packing: str
) -> None:
    path = tmp_path / f"corpus.txt{packing}"
    path.write_bytes(PACKERS[packing](text.encode()))
    expected = split_slowly(text.encode(), [separator.encode() for separator in separators])
    for batch_bytes in range(1, 12):
        assert read(path, separators=separators, batch_bytes=batch_bytes) == expected


BAD = b"good one<|endoftext|>bad \xff\xfe one<|endoftext|>good too<|endoftext|>cut \xe2\x82"


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("batch_bytes", [1, 10, 25, 1 << 20])
def test_invalid_utf8_raises_or_is_replaced_or_skipped(
    tmp_path: Path, packing: str, batch_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / f"corpus.txt{packing}"
    path.write_bytes(PACKERS[packing](BAD))
    with pytest.raises(DataError, match=rf"{path}, after '.*bad ': .*--errors replace"):
        read(path, batch_bytes=batch_bytes)
    # Only the incomplete character at the end is missing.
    expected = BAD[:-2].decode(errors="replace").encode().split(SEPARATOR.encode())
    assert read(path, batch_bytes=batch_bytes, errors="replace") == expected
    assert read(path, batch_bytes=batch_bytes, errors="skip") == [*expected[::2], b"cut "]
    assert "the middle of a character" in caplog.text and "skipped 1 document" in caplog.text


def test_a_long_document_ends_at_its_invalid_byte(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = b"word " * 9 + b"\xff " + b"word " * 9
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text))
    (tmp_path / "b.txt").write_bytes(b"next")
    part, how = Part(tuple(find_sources([tmp_path]))), Reading(errors="skip")
    batches = list(read_part(part, how, find_cut=lambda text: 5, piece_bytes=10))
    pieces = [bytes(one.data) for one in batches if len(one.bounds)]
    assert pieces == [b"word "] * 9 + [b"", b"next"]
    assert [one.continues for one in batches if len(one.bounds)] == [True] * 9 + [False] * 2
    assert "a.txt.gz: after '': not UTF-8" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("separator", [SEPARATOR, ""])
def test_memory_is_bounded_over_a_long_file(tmp_path: Path, packing: str, separator: str) -> None:
    """Also for a single document, read in pieces."""
    path = tmp_path / f"long.txt{packing}"
    words = random.Random(0).randbytes(4_000_000).hex(" ", 500).replace(" ", f" {separator}")
    path.write_bytes(PACKERS[packing](words.encode()))
    part, how, size = Part(tuple(find_sources([path]))), Reading(), 1 << 17
    tracemalloc.start()
    try:
        options = {"batch_bytes": size, "piece_bytes": size}
        assert sum(1 for _ in read_part(part, how, find_cut=after_space, **options)) > 20
        assert tracemalloc.get_traced_memory()[1] < 5_500_000
    finally:
        tracemalloc.stop()


def after_space(text: memoryview) -> int:
    return bytes(text).rfind(b" ") + 1


@pytest.mark.skipif(sys.platform != "linux", reason="open files are counted in /proc")
def test_small_files_share_a_batch_and_do_not_stay_open(tmp_path: Path) -> None:
    texts = [f"text {number}{SEPARATOR}more" for number in range(20)]
    for number, text in enumerate(texts):
        (tmp_path / f"{number:02}.txt").write_text(text)
    num_open = len(os.listdir("/proc/self/fd"))
    (batch,) = read_document_batches([tmp_path])
    assert bytes(batch.data).decode() == SEPARATOR.join(texts)
    assert len(os.listdir("/proc/self/fd")) == num_open


@hypothesis.given(
    documents=st.lists(st.text("ab é", min_size=1, max_size=70), min_size=1, max_size=8),
    batch_sizes=st.lists(st.integers(1, 90), min_size=2, max_size=2),
    piece_bytes=st.integers(4, 40),
)
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
def test_long_documents_come_in_pieces_that_do_not_depend_on_batches(
    tmp_path: Path, documents: list[str], batch_sizes: list[int], piece_bytes: int
) -> None:
    path = tmp_path / "corpus.txt.gz"
    path.write_bytes(gzip.compress("|".join(documents).encode()))
    part = Part(tuple(find_sources([path])))

    found = []
    for batch_bytes in batch_sizes:
        pieces: list[list[bytes]] = [[]]
        for batch in read_part(
            part,
            Reading(("|",)),
            batch_bytes=batch_bytes,
            find_cut=after_space,
            piece_bytes=piece_bytes,
        ):
            for text in documents_of([batch]):
                pieces[-1].append(text)
                if not batch.continues:
                    pieces.append([])
        assert [b"".join(texts) for texts in pieces[:-1]] == [text.encode() for text in documents]
        found.append(pieces)
    words = [word for text in documents for word in text.split(" ")]
    if all(len(word.encode()) + 1 < piece_bytes for word in words):
        assert found[0] == found[1]
