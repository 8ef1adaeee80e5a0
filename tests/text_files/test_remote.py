"""Remote files: URLs are opened by fsspec, and read like local files."""

import gzip
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from groundup.errors import DataError, MissingExtraError
from groundup.text_files import find_sources

from .conftest import read as read_documents

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def corpus() -> Iterator[str]:
    system = fsspec.filesystem("memory")
    system.pipe("/corpus/a.txt", b"one<|endoftext|>two")
    system.pipe("/corpus/sub/b.jsonl.gz", gzip.compress(json.dumps({"text": "three"}).encode()))
    system.pipe("/corpus/picture.png", b"x")
    table = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"text": ["four"]}), table)
    system.pipe("/corpus/sub/c.parquet", table.getvalue())
    yield "memory://corpus"
    system.rm("/corpus", recursive=True)


def read(*inputs: str, **options: object) -> list[str]:
    return [text.decode() for text in read_documents(*inputs, **options)]


def test_files_folders_and_globs_are_read(corpus: str, caplog: pytest.LogCaptureFixture) -> None:
    assert read(corpus, batch_bytes=1) == ["one", "two", "three", "four"]
    assert "picture.png" in caplog.text
    assert read(f"{corpus}/a.txt") == ["one", "two"]
    assert read(f"{corpus}/**/*.gz", f"{corpus}/sub/b.jsonl.gz") == ["three"]
    assert "named twice" in caplog.text
    (before,) = find_sources([f"{corpus}/a.txt"])
    fsspec.filesystem("memory").pipe("/corpus/a.txt", b"one<|endoftext|>three")
    (after,) = find_sources([f"{corpus}/a.txt"])
    assert after != before


def test_a_missing_url_is_reported(corpus: str) -> None:
    with pytest.raises(DataError, match=r"memory://corpus/gone\.txt cannot be read"):
        find_sources([f"{corpus}/gone.txt"])
    with pytest.raises(DataError, match=r"\*\.htm has no text files"):
        find_sources([f"{corpus}/*.htm"])
    with pytest.raises(DataError, match=r"nosuch://x cannot be read: .*nosuch"):
        find_sources(["nosuch://x"])


@pytest.mark.parametrize(
    ("name", "module", "message"),
    [
        ("https://a/b.txt", "aiohttp", r"groundup\[remote\]"),
        ("a.parquet", "pyarrow", r"groundup\[parquet\]"),
        ("a.txt.zst", "zstandard", r"groundup\[zstd\]"),
        ("s3://a/b.txt", "s3fs", "s3://a/b.txt cannot be read: .*s3fs"),
    ],
)
def test_a_missing_package_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if "/" not in name:
        Path(name).write_bytes(b"x")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises((MissingExtraError, DataError), match=message):
        read(name)
