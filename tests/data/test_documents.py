"""Corpora as documents: every kind of file gives the same ones, and damage is named."""

import gzip
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from groundup.errors import DataError, MissingExtraError
from groundup.text_files import DocumentBatch, read_document_batches, read_text_blocks

SEPARATOR = "<|endoftext|>"
TEXTS = ["One day, it rained.", "\nZoë ran home.\n", "日本語 and 🦊\x00", " ", "the end"]

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def as_plain(texts: Iterable[str]) -> bytes:
    return SEPARATOR.join(texts).encode()


def as_json_lines(texts: Iterable[str], field: str = "text") -> bytes:
    return b"".join(json.dumps({"n": 1, field: text}).encode() + b"\n" for text in texts)


def as_parquet(texts: Iterable[Any], column: str = "text", **options: Any) -> bytes:
    sink = io.BytesIO()
    table = pyarrow.table({"n": [1] * len(list(texts)), column: list(texts)})
    pyarrow.parquet.write_table(table, sink, **options)
    return sink.getvalue()


WRITERS: dict[str, Callable[[Iterable[str]], bytes]] = {
    ".txt": as_plain,
    ".jsonl": as_json_lines,
    ".ndjson": as_json_lines,
    ".parquet": as_parquet,
}


def documents_of(batches: Iterable[DocumentBatch]) -> list[bytes]:
    return [
        bytes(batch.data[begin:end]) for batch in batches for begin, end in batch.bounds.tolist()
    ]


def read(*inputs: Path | str, **options: Any) -> list[bytes]:
    return documents_of(read_document_batches(inputs, **options))


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("batch_bytes", [1, 30, 1 << 20])
def test_every_kind_of_file_gives_the_same_documents(
    tmp_path: Path, suffix: str, packing: str, batch_bytes: int
) -> None:
    path = tmp_path / f"corpus{suffix}{packing}"
    path.write_bytes(PACKERS[packing](WRITERS[suffix](TEXTS)))
    assert read(path, batch_bytes=batch_bytes) == [text.encode() for text in TEXTS]


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("suffix", WRITERS)
def test_blocks_of_text_hold_the_same_documents(tmp_path: Path, suffix: str, packing: str) -> None:
    path = tmp_path / f"corpus{suffix}{packing}"
    path.write_bytes(PACKERS[packing](WRITERS[suffix](TEXTS)))
    for options in ({}, {"block_bytes": 7}, {"joiner": SEPARATOR}):
        blocks = [bytes(block) for block in read_text_blocks([path], **options)]
        found = [text for block in blocks for text in block.split(SEPARATOR.encode()) if text]
        assert found == [text.encode() for text in TEXTS]
    if suffix != ".txt":
        assert len(list(read_text_blocks([path]))) == len(TEXTS)
        assert len(list(read_text_blocks([path], joiner=SEPARATOR))) == 1


def test_several_frames_and_members_are_one_text(tmp_path: Path) -> None:
    for packing, pack in PACKERS.items():
        path = tmp_path / f"corpus.txt{packing}"
        path.write_bytes(pack(b"first, ") + pack(b"") + pack(b"second"))
        assert read(path) == [b"first, second"]


def test_an_unknown_suffix_is_plain_text(tmp_path: Path) -> None:
    (tmp_path / "corpus.md").write_text("one<|endoftext|>two")
    (tmp_path / "corpus").write_text("three")
    assert read(tmp_path / "corpus.md", tmp_path / "corpus") == [b"one", b"two", b"three"]


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("suffix", [".txt", ".jsonl"])
def test_an_empty_file_is_an_error(tmp_path: Path, suffix: str, packing: str) -> None:
    path = tmp_path / f"nothing{suffix}{packing}"
    path.write_bytes(PACKERS[packing](b""))
    with pytest.raises(DataError, match=rf"{path} is empty"):
        read(path)


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("packing", [".gz", ".zst"])
def test_a_packed_file_cut_short_is_an_error(tmp_path: Path, suffix: str, packing: str) -> None:
    path = tmp_path / f"corpus{suffix}{packing}"
    path.write_bytes(PACKERS[packing](WRITERS[suffix](TEXTS * 100))[:-9])
    with pytest.raises(DataError, match=rf"{path} is damaged or cut short"):
        read(path)


@pytest.mark.parametrize("name", ["corpus.txt.gz", "corpus.txt.zst", "corpus.jsonl.zst"])
def test_a_file_that_is_not_packed_as_its_name_says_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"plainly not packed")
    with pytest.raises(DataError, match=rf"{tmp_path / name} is damaged"):
        read(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [("corpus.parquet", "pyarrow", "parquet"), ("corpus.txt.zst", "zstandard", "zstd")],
)
def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str, extra: str
) -> None:
    (tmp_path / name).write_bytes(b"x")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"groundup\[{extra}\]"):
        read(tmp_path / name)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "secret.txt"
    path.write_text("x")
    path.chmod(0)
    with pytest.raises(DataError, match=rf"{path} cannot be read: Permission denied"):
        read(path)


def test_a_dangling_link_is_named(tmp_path: Path) -> None:
    path = tmp_path / "link.txt"
    path.symlink_to(tmp_path / "gone.txt")
    with pytest.raises(DataError, match=rf"{path} cannot be read: No such file"):
        read(path)


def test_an_error_of_the_caller_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("text")

    def consume(batches: Iterator[DocumentBatch]) -> None:
        for _ in batches:
            raise OSError("mine")

    with pytest.raises(OSError, match="mine"):
        consume(read_document_batches([path]))


def test_progress_ends_at_the_size_of_the_files(tmp_path: Path) -> None:
    sizes = 0
    for suffix, write in WRITERS.items():
        for packing, pack in PACKERS.items():
            path = tmp_path / f"corpus{suffix}{packing}"
            path.write_bytes(pack(write(TEXTS)))
            sizes += path.stat().st_size
    seen: list[tuple[int, int | None]] = []
    for _ in read_document_batches([tmp_path], progress=lambda *it: seen.append(it)):
        pass
    done = [done for done, _ in seen]
    assert done == sorted(done)
    assert seen[-1] == (sizes, sizes)
