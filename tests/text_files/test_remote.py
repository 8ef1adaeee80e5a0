"""Remote files: addresses go to fsspec, and what it gives is read like files on disk."""

import functools
import gzip
import http.server
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from groundup.data.prepare import prepare
from groundup.errors import DataError, MissingExtraError
from groundup.text_files import find_sources
from groundup.tokenizer import Tokenizer

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


def test_an_address_that_does_not_exist_is_named(corpus: str) -> None:
    with pytest.raises(DataError, match=r"memory://corpus/gone\.txt cannot be read"):
        find_sources([f"{corpus}/gone.txt"])
    with pytest.raises(DataError, match=r"\*\.htm has no text files"):
        find_sources([f"{corpus}/*.htm"])
    with pytest.raises(DataError, match=r"nosuch://x cannot be read: .*nosuch"):
        find_sources(["nosuch://x"])


@pytest.mark.parametrize(
    ("address", "kind", "message"),
    [
        ("https://a/b.txt", MissingExtraError, r"groundup\[remote\]"),
        ("s3://a/b.txt", DataError, "s3://a/b.txt cannot be read: install s3fs"),
    ],
)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, address: str, kind: type[Exception], message: str
) -> None:
    def url_to_fs(address: str) -> tuple[object, str]:
        raise ImportError("install s3fs")

    monkeypatch.setattr(fsspec.core, "url_to_fs", url_to_fs)
    with pytest.raises(kind, match=message):
        find_sources([address])


def test_files_of_a_web_server_are_read(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    (tmp_path / "a.txt").write_text("one<|endoftext|>two")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            assert read(f"{address}/a.txt") == ["one", "two"]
            with pytest.raises(DataError, match=r"/gone\.txt cannot be read"):
                read(f"{address}/gone.txt")
        finally:
            server.shutdown()
            thread.join()


def test_shards_of_remote_text_are_up_to_date_until_it_changes(corpus: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer({i: bytes([i]) for i in range(256)}, [], ["<|endoftext|>"])
    make = functools.partial(prepare, [corpus], tokenizer, tmp_path / "shards")
    first = make()
    assert first.index.sources[0].path.startswith("memory://")
    assert make().outcome == "up to date"
    fsspec.filesystem("memory").pipe("/corpus/a.txt", b"one<|endoftext|>three")
    with pytest.raises(DataError, match=r"a\.txt has changed since"):
        make()
