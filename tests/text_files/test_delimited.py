"""Tables: a column of each row is a document."""

import csv
import io
import lzma
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest

from groundup.errors import DataError
from groundup.text_files import read_document_batches


def write(path: Path, rows: list[list[str]], delimiter: str = ",") -> Path:
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter).writerows(rows)
    data = text.getvalue().encode()
    path.write_bytes(lzma.compress(data) if path.suffix == ".xz" else data)
    return path


def read(path: Path, field: str = "text", **options: object) -> list[str]:
    texts = []
    for batch in read_document_batches([path], field=field, **options):  # type: ignore[arg-type]
        texts += [bytes(batch.data[a:b]).decode() for a, b in batch.bounds.tolist()]
    return texts


cells = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), min_size=1)


@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(rows=st.lists(st.tuples(cells, cells), max_size=6), size=st.integers(1, 30))
def test_a_column_comes_back_as_it_was_written(
    tmp_path: Path, rows: list[tuple[str, str]], size: int
) -> None:
    path = write(tmp_path / "t.csv", [["id", "text"], *map(list, rows)])
    assert read(path, batch_bytes=size) == [text for _, text in rows]


@pytest.mark.parametrize(
    ("name", "delimiter"), [("t.csv", ","), ("t.tsv", "\t"), ("t.csv", ";"), ("t.csv.xz", ",")]
)
def test_the_header_tells_the_delimiter(tmp_path: Path, name: str, delimiter: str) -> None:
    rows = [["id", "body"], ["1", "a, b; c\td\nsecond line"], [], ["2", ""], ["3", "z"]]
    path = write(tmp_path / name, rows, delimiter)
    assert read(path, "body") == ["a, b; c\td\nsecond line", "z"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"id,body\n1,x\n", "no column text .*id, body.*--field"),
        (b"id,text\n1,x\n2\n", r"t\.csv line 3 has 1 columns? and none for text"),
        (b"text\nfine\nb\xff\n", r"t\.csv line 3: not UTF-8; name its encoding"),
        (
            "text\nx\n".encode("utf-16"),
            r"line 1: not UTF-8 but probably utf-16",
        ),
        (
            b'id,text\n1,"a"\n2,"b ""c"" d\n3,e\n4,f\n',
            r"line 3 cannot be read: a quote opens there and never closes; fix the line",
        ),
        (b'id,text\n1,a\n2,"cut off', r"line 3 cannot be read: a quote opens there"),
        (b'text,"cut off\n1,a\n', r"t\.csv line 1 cannot be read: a quote opens there"),
    ],
)
def test_what_is_wrong_with_a_table_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read(path)


def test_a_mark_at_the_beginning_is_not_part_of_a_name(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbftext\nx\nb\xffd\n")
    assert read(path, errors="replace") == ["x", "b\ufffdd"]
    assert read(path, errors="skip") == ["x"]
    path.write_bytes(b"id,text\n1,x\n2\n3,y\n")
    assert read(path, errors="skip") == ["x", "y"]
    path.write_bytes(b"text\nb\xffd\n")
    assert read(path, encoding="cp1252") == ["bÿd"]


def test_the_limit_of_the_csv_module_stays_what_it_is(tmp_path: Path) -> None:
    limit = csv.field_size_limit()
    path = tmp_path / "long.csv"
    path.write_text("text\n" + "x" * (limit + 1) + "\n")
    (batch,) = read_document_batches([path])
    assert len(batch.data) == limit + 1 and csv.field_size_limit() == limit
