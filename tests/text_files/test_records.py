"""JSON lines and Parquet: records as documents, and the bad ones named by line or row."""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from groundup.errors import DataError
from groundup.text_files import DocumentBatch, read_document_batches

TEXTS = ["One day, it rained.", "\nZoë ran home.\n", "日本語 and 🦊\x00", " ", "the end"]


def documents_of(batches: Iterable[DocumentBatch]) -> list[bytes]:
    return [
        bytes(batch.data[begin:end]) for batch in batches for begin, end in batch.bounds.tolist()
    ]


def read(*inputs: Path | str, **options: Any) -> list[bytes]:
    return documents_of(read_document_batches(inputs, **options))


def as_parquet(texts: Iterable[Any], column: str = "text", **options: Any) -> bytes:
    sink = io.BytesIO()
    table = pyarrow.table({"n": [1] * len(list(texts)), column: list(texts)})
    pyarrow.parquet.write_table(table, sink, **options)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "cut', "line 2 is not JSON"),
        (b"[1, 2]", "line 2 holds a list"),
        (
            b'{"body": "x", "id": 7}',
            r"line 2 has no field text; its fields are body, id: .*--field",
        ),
        (b"{}", "its fields are none"),
        (b'{"text": 3}', "line 2 holds a number in field text, not a text"),
        (b'{"text": null}', "holds null"),
        (b'{"text": "\xff"}', r"line 2: not UTF-8; .*--errors"),
        (b'{"text": "\\ud800"}', r"line 2: not UTF-8"),
        (b"[" * 100_000, "line 2 is not JSON"),
    ],
)
def test_a_bad_json_line_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'{"text": "fine"}\n' + line + b"\n")
    with pytest.raises(DataError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_json_lines_are_read_generously(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"body": "one"}\r\n\n  \n{"body": ""}\n{"body": "\\ud83e\\udd8a"}'
    )
    assert read(path, field="body") == [b"one", "🦊".encode()]


def test_bad_records_are_replaced_or_left_out(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'{"text": "a"}\n{"text": "b\xff"}\n{"text": "c\\ud800d"}\n')
    assert read(path, errors="replace") == [b"a", "b\ufffd".encode(), "c\ufffdd".encode()]
    batches = list(read_document_batches([path], errors="skip"))
    assert documents_of(batches) == [b"a"]
    assert batches[0].num_skipped == 2


def test_a_missing_parquet_column_is_named_with_those_there_are(tmp_path: Path) -> None:
    path = tmp_path / "corpus.parquet"
    path.write_bytes(as_parquet(TEXTS, column="content"))
    with pytest.raises(DataError, match=r"no column text; its columns are n, content: .*--column"):
        read(path)
    with pytest.raises(DataError, match="column n holds int64, not text"):
        read(path, column="n")
    assert read(path, column="content") == [text.encode() for text in TEXTS]


def test_parquet_columns_of_all_text_types_are_read(tmp_path: Path) -> None:
    texts = ["one", None, "", "two", "one"]
    path = tmp_path / "corpus.parquet"
    for kind in (
        pyarrow.string(),
        pyarrow.large_string(),
        pyarrow.binary(),
        pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
    ):
        table = pyarrow.table({"text": pyarrow.array(texts, pyarrow.string()).cast(kind)})
        pyarrow.parquet.write_table(table, path, row_group_size=2)
        for batch_bytes in (1, 1000):
            assert read(path, batch_bytes=batch_bytes) == [b"one", b"two", b"one"]


def test_bad_bytes_in_parquet_are_named_by_row(tmp_path: Path) -> None:
    path = tmp_path / "corpus.parquet"
    path.write_bytes(as_parquet([b"fine", b"", b"b\xffd"]))
    for batch_bytes in (1, 1000):
        with pytest.raises(DataError, match=rf"{path}, row 2: not UTF-8"):
            read(path, batch_bytes=batch_bytes)
        assert read(path, batch_bytes=batch_bytes, errors="skip") == [b"fine"]
        mended = read(path, batch_bytes=batch_bytes, errors="replace")
        assert mended == [b"fine", "b\ufffdd".encode()]


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "corpus.parquet"
    path.write_bytes(b"not at all")
    with pytest.raises(DataError, match=rf"{path} is not a readable Parquet file"):
        read(path)
