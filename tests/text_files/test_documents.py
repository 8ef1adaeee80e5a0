"""Reading documents: all formats give the same ones, and errors name the problem."""

import codecs
import csv
import io
import json
import lzma
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from groundup.errors import DataError
from groundup.text_files import (
    Reading,
    cut_into_parts,
    find_sources,
    read_document_batches,
    records,
)
from groundup.text_files.html import text_of_page

from .conftest import PACKERS, SEPARATOR, TEXTS, read


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
    ".parquet": as_parquet,
}


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("batch_bytes", [1, 30, 1 << 20])
def test_all_formats_contain_the_same_documents(
    tmp_path: Path, suffix: str, packing: str, batch_bytes: int
) -> None:
    path = tmp_path / f"corpus{suffix}{packing}"
    path.write_bytes(PACKERS[packing](WRITERS[suffix](TEXTS)))
    if suffix == ".parquet" and packing:
        with pytest.raises(DataError, match="decompress"):
            read(path)
        return
    assert read(path, batch_bytes=batch_bytes) == [text.encode() for text in TEXTS]
    # A separator is between documents, also of different files.
    other = shutil.copy(path, tmp_path / f"again{suffix}{packing}")
    done: list[tuple[int, int | None]] = []
    (batch,) = read_document_batches([path, other], progress=lambda *it: done.append(it))
    assert bytes(batch.data) == as_plain(TEXTS * 2)
    assert done == [(2 * path.stat().st_size,) * 2]


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("batch_bytes", [1, 2, 3, 4, 30, 1 << 20])
def test_byte_order_marks_are_removed(tmp_path: Path, packing: str, batch_bytes: int) -> None:
    path = tmp_path / f"corpus.md{packing}"
    path.write_bytes(PACKERS[packing](codecs.BOM_UTF8 + as_plain(["one", "\ufefftwo"])))
    assert read(path, batch_bytes=batch_bytes) == [b"one", "\ufefftwo".encode()]
    path.write_bytes(PACKERS[packing](codecs.BOM_UTF8))
    assert read(path) == []
    path.write_bytes(PACKERS[packing](b"a"))
    assert read(path, batch_bytes=batch_bytes) == [b"a"]


def test_multiple_frames_and_long_windows_are_decompressed(tmp_path: Path) -> None:
    for packing, pack in PACKERS.items():
        path = tmp_path / f"corpus.txt{packing}"
        path.write_bytes(pack(b"first, ") + pack(b"") + pack(b"second"))
        assert read(path) == [b"first, second"]
    parameters = zstandard.ZstdCompressionParameters(window_log=28)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    path = tmp_path / "corpus.txt.zst"
    path.write_bytes(packer.compress(b"text") + packer.flush())
    assert read(path) == [b"text"]


@pytest.mark.slow
@pytest.mark.parametrize("packing", [packing for packing in PACKERS if packing])
@pytest.mark.parametrize("suffix", [".txt", ".jsonl"])
def test_damaged_and_truncated_files_raise(tmp_path: Path, suffix: str, packing: str) -> None:
    path = tmp_path / f"corpus{suffix}{packing}"
    packed = PACKERS[packing](WRITERS[suffix](f"line {n} of a text" for n in range(20_000)))
    for data in (packed[: len(packed) // 2], packed[:-9], packed[:-1], b"plainly not packed"):
        path.write_bytes(data)
        with pytest.raises(DataError, match=rf"{path} cannot be read"):
            read(path)


# Records


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", b'{"text": "fine"}\n{"text": "cut', "line 2 is not JSON"),
        ("a.jsonl", b'{"text": "fine"}\n[1, 2]', "line 2 holds"),
        ("a.jsonl", b'{"text": "fine"}\n{"no": null, "id": 7}', "field text.*no, id.*--field"),
        ("a.jsonl", b'{"text": "fine"}\n{"text": 3}', "line 2 holds 3"),
        ("a.jsonl", b'{"text": "fine"}\n{"text": "\xff"}', "line 2: not UTF-8"),
        ("a.jsonl", b'{"text": "fine"}\n{"text": "\\ud800"}', "line 2: not UTF-8"),
        ("a.jsonl", b'{"text": "fine"}\n' + b"[" * 100_000, "line 2 is not JSON"),
        ("a.json", b'[{"text": "fine"}, 3]', "record 2 holds 3"),
        ("a.csv", b"id,text\n1,fine\n2\n", "line 3 has 1 column instead of 2"),
        ("a.csv", b"text\nfine\nb\xff\n", "line 3: not UTF-8"),
        (
            "a.csv",
            b'id,text\n1,"fine"\n2,"b ""c"" d\n3,e\n4,f\n',
            "line 3 cannot be read: .* quote",
        ),
        ("a.csv", b'id,text\n1,fine\n2,"cut off', "line 3 cannot be read: .* quote"),
    ],
)
def test_bad_records_raise_or_are_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, text: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(text)
    with pytest.raises(DataError, match=rf"{path} .*{message}|{path} {message}"):
        read(path)
    assert read(path, errors="skip") == [b"fine"]
    assert name in caplog.text and "skipped 1" in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"id,price\n1,2\n", "line 2 has no field text .*id, price.*--field"),
        (b"id\xff,body\n", "line 1: not UTF-8"),
        (b'text,"cut off\n1,a\n', "line 1 cannot be read: .* quote"),
    ],
)
def test_tables_without_a_text_column_are_rejected(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(DataError, match=rf"t\.csv {message}"):
        read(tmp_path)


def test_json_lists_are_read_and_other_json_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.json").write_text('[{"id": 1, "body": "one é"}, {"id": 2, "body": "two"}]')
    (tmp_path / "b.json").write_text('{"name": "a package", "files": ["x"]}')
    (tmp_path / "c.json").write_text('{"text": "lines"}\n{"text": "too"}\n')
    (tmp_path / "d.json").write_text(json.dumps({"messages": TALK}), "utf-16")
    expected = ["one é", "two", "lines", "too", "User: Hi\n\nAssistant: Yes?"]
    assert read(tmp_path) == [text.encode() for text in expected]
    assert f"{tmp_path / 'b.json'}: not a list of records" in caplog.text
    monkeypatch.setattr(records, "MAX_RECORD_BYTES", 9)
    with pytest.raises(DataError, match=r"a\.json has more than 9 bytes; write it as JSON lines"):
        read(tmp_path / "a.json")


def test_json_lines_are_read_leniently(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"body": "one"}\r\n\n  \n{"body": ""}\n{"body": "\\ud83e\\udd8a"}'
        b'\n{"body": "b\xff"}\n{"body": "c\\ud800d\xe2\x82 e"}\n'
    )
    replaced = ["one", "🦊", "b\ufffd", "c\ufffdd\ufffd e"]
    found = read(path, field="body", errors="replace")
    assert found == [text.encode() for text in replaced]
    assert read(path, field="body", errors="skip") == found[:2]


def test_a_missing_parquet_column_lists_the_columns(tmp_path: Path) -> None:
    path = tmp_path / "corpus.parquet"
    path.write_bytes(as_parquet([1, 2], column="price"))
    with pytest.raises(DataError, match=r"column text .*n, price.*--field"):
        read(path)
    path.write_bytes(as_parquet(TEXTS, column="content"))
    with pytest.raises(DataError, match="column n holds int64, not text"):
        read(path, field="n")
    assert read(path, field="content") == [text.encode() for text in TEXTS]


def test_parquet_columns_of_all_text_types_are_read(tmp_path: Path) -> None:
    texts = ["one", None, "", "two", "one"]
    path = tmp_path / "corpus.parquet"
    for kind in (
        pyarrow.string(),
        pyarrow.large_string(),
        pyarrow.binary(),
        pyarrow.string_view(),
        pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
    ):
        table = pyarrow.table({"text": pyarrow.array(texts, pyarrow.string()).cast(kind)})
        pyarrow.parquet.write_table(table, path, row_group_size=2)
        for batch_bytes in (1, 1000):
            assert read(path, batch_bytes=batch_bytes) == [b"one", b"two", b"one"]


@pytest.mark.parametrize("batch_bytes", [1, 1000])
def test_invalid_utf8_in_parquet_is_reported(tmp_path: Path, batch_bytes: int) -> None:
    path = tmp_path / "corpus.parquet"
    path.write_bytes(as_parquet([b"fine", b"", b"b\xffd"]))
    with pytest.raises(DataError, match=rf"{path}, after '.*b': not UTF-8"):
        read(path, batch_bytes=batch_bytes)
    assert read(path, batch_bytes=batch_bytes, errors="skip") == [b"fine"]
    mended = read(path, batch_bytes=batch_bytes, errors="replace")
    assert mended == [b"fine", "b\ufffdd".encode()]


RECORDS: list[tuple[dict[str, Any], str]] = [
    ({"id": 1, "text": "a", "content": "other"}, "a"),
    ({"id": 1, "Content": "a", "body": "other"}, "a"),
    ({"id": 1, "body": "a"}, "a"),
    ({"url": "https://example.org/a/long/name", "summary": "two words"}, "two words"),
    ({"id": "x", "question": "Why?", "answer": "So."}, "User: Why?\n\nAssistant: So."),
]
TALK = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yes?"}]


@pytest.mark.parametrize(("record", "text"), RECORDS)
def test_the_text_field_is_found_in_every_file(
    tmp_path: Path, record: dict[str, Any], text: str
) -> None:
    write_table(tmp_path / "a.csv", [list(record), [str(one) for one in record.values()]])
    (tmp_path / "b.jsonl").write_text(f"{json.dumps(record)}\n" * 3)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([record] * 2), tmp_path / "c.parquet")
    assert read(tmp_path) == [text.encode()] * 6
    # The requested field is used in files that have it.
    for field in set(record) - {"id"}:
        assert read(tmp_path, field=field) == [record[field].encode()] * 6
    assert read(tmp_path, field="elsewhere") == [text.encode()] * 6


def test_conversations_are_documents(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]
    records: list[dict[str, Any]] = [{"messages": said}, {"conversations": TALK}]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in records))
    for number, record in enumerate(records):
        path = tmp_path / f"{number}.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([record | {"id": "x"}]), path)
    expected = b"User: Hi\n\nAssistant: Yes?"
    assert read(tmp_path) == [expected] * 4
    assert read(tmp_path, field="conversations") == [expected] * 4


def test_the_longest_field_is_found_in_the_first_records(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [f'{{"a": "line {n} of a text", "b": "{"long " * n}"}}' for n in range(200)]
    path.write_text("\n".join(lines))
    assert len(cut_into_parts(find_sources([path]), 1000, Reading())) == 1
    assert len(cut_into_parts(find_sources([path]), 1000, Reading(field="a"))) > 1
    assert read(path) == [f"{'long ' * n}".encode() for n in range(1, 200)]


# Tables


def write_table(path: Path, rows: list[list[str]], delimiter: str = ",") -> Path:
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter).writerows(rows)
    data = text.getvalue().encode()
    path.write_bytes(lzma.compress(data) if path.suffix == ".xz" else data)
    return path


cells = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), min_size=1)


@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(rows=st.lists(st.tuples(cells, cells), max_size=6), size=st.integers(1, 30))
def test_csv_columns_round_trip(tmp_path: Path, rows: list[tuple[str, str]], size: int) -> None:
    path = write_table(tmp_path / "t.csv", [["id", "text"], *map(list, rows)])
    assert read(path, batch_bytes=size) == [text.encode() for _, text in rows]


@pytest.mark.parametrize(
    ("name", "delimiter"), [("t.csv", ","), ("t.tsv", "\t"), ("t.csv", ";"), ("t.csv.xz", ",")]
)
def test_the_header_determines_the_delimiter(tmp_path: Path, name: str, delimiter: str) -> None:
    rows = [["id", "body"], ["1", "a, b; c\td\nsecond line"], [], ["2", ""], ["3", "z"]]
    path = write_table(tmp_path / name, rows, delimiter)
    assert read(path, field="body") == [b"a, b; c\td\nsecond line", b"z"]


def test_the_csv_field_limit_is_restored(tmp_path: Path) -> None:
    limit = csv.field_size_limit()
    path = tmp_path / "long.csv"
    path.write_text("text\n" + "x" * (limit + 1) + "\n")
    (batch,) = read_document_batches([path])
    assert len(batch.data) == limit + 1 and csv.field_size_limit() == limit


# Pages

PAGE = """<!DOCTYPE html><html><head><title>Foxes &amp; hens</title>
<style>p { color: red }</style><script>var text = "<p>not text</p>";</script></head>
<body><!-- nothing --><h1>The   fox</h1><p>One <b>red</b>
fox&nbsp;ran.<br>It was&#x20;late.</p><ul><li>one</li><li>two</ul>
<pre>  a = 1
    b</pre><table><tr><td>x</td><td>y</td></tr></table><p>End</body></html>"""
SEEN = (
    "Foxes & hens\n\nThe fox\n\nOne red fox\xa0ran.\nIt was late.\n\none\ntwo\n\n"
    "  a = 1\n    b\n\nx\ty\n\nEnd"
)


def test_a_page_is_one_document_without_tags_scripts_and_styles(tmp_path: Path) -> None:
    for name in ("a.html", "b.HTM", "c.xhtml"):
        (tmp_path / name).write_text(PAGE, encoding="utf-8-sig")
    assert read(tmp_path) == [SEEN.encode()] * 3
    assert text_of_page("<noscript>hidden<body>shown") == "shown"
    assert text_of_page("one<script>hidden</script>two<svg>x</svg> three") == "onetwo three"


@hypothesis.given(st.text(alphabet="<>/ab&;!-\n \"'p", max_size=60))
def test_any_text_can_be_parsed_as_html(page: str) -> None:
    text = text_of_page(page)
    assert text == text.strip() and "<p>" not in text
