"""Files that are not UTF-8: named with the flag that accepts them, and then read."""

import gzip
import io
import json
import os
import sys
from pathlib import Path

import pytest

from groundup.errors import ConfigError, DataError
from groundup.text_files import read_document_batches, read_text_blocks

TEXT = "Über den Wäldern, café\n" * 40


def read(*paths: Path, **options: object) -> str:
    blocks = read_text_blocks(paths, **options)  # type: ignore[arg-type]
    return "".join(str(block, "utf-8") for block in blocks)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-16-be", "latin-1", "cp1252"])
@pytest.mark.parametrize("block_bytes", [7, 1 << 20])
def test_a_file_in_the_named_encoding_is_read(
    tmp_path: Path, encoding: str, block_bytes: int
) -> None:
    path = tmp_path / "old.txt"
    path.write_bytes(TEXT.encode(encoding))
    packed = tmp_path / "packed.txt.gz"
    packed.write_bytes(gzip.compress(TEXT.encode(encoding)))
    assert read(path, packed, encoding=encoding, block_bytes=block_bytes) == TEXT * 2


def test_a_file_that_only_looks_like_utf8_is_read_in_the_named_encoding(tmp_path: Path) -> None:
    path = tmp_path / "old.txt"
    path.write_bytes("plain letters".encode("utf-16-le"))
    assert read(path, encoding="utf-16-le") == "plain letters"
    # The beginning of a character that does not come.
    path.write_bytes("abÃ".encode("latin-1"))
    assert read(path, encoding="latin-1") == "abÃ"


@pytest.mark.parametrize(
    ("encoding", "text"),
    [("iso2022_jp", "東京"), ("iso2022_kr", "한국"), ("hz", "中国"), ("utf-7", "né")],
)
def test_an_encoding_that_is_all_ascii_is_read(tmp_path: Path, encoding: str, text: str) -> None:
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    (tmp_path / "b.txt").write_text(TEXT, encoding="utf-8")
    assert read(tmp_path, encoding=encoding) == text + TEXT


def test_nul_is_no_sign_of_an_encoding_of_single_bytes(tmp_path: Path) -> None:
    path = tmp_path / "nul.txt"
    path.write_text("né\0", encoding="utf-8")
    assert read(path, encoding="latin-1") == "né\0"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_a_byte_order_mark_counts_more_than_the_flag(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "windows.txt"
    path.write_bytes("Das Mädchen".encode(encoding))
    assert read(path, encoding="cp1252") == "Das Mädchen"


def test_files_that_are_utf8_stay_so_beside_others(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    (tmp_path / "b.txt").write_bytes(TEXT.encode("latin-1"))
    line = json.dumps({"text": "né"}, ensure_ascii=False)
    (tmp_path / "c.jsonl").write_bytes(line.encode("latin-1"))
    assert read(tmp_path, encoding="latin-1") == TEXT * 2 + "né"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "hé".encode("utf-16"),
            r"old\.txt, byte 0: not UTF-8 but utf-16, as it seems; .*--encoding utf-16",
        ),
        ("hé".encode("utf-32"), r"not UTF-8 but utf-32, as it seems; .*--encoding utf-32"),
        (b"ab\xe9", r"old\.txt, byte 2: not UTF-8 but cp1252.*--encoding cp1252.*--errors replace"),
        (b"ab\xff", r"old\.txt, byte 2: not UTF-8; .*--encoding latin-1.*--errors replace"),
    ],
)
def test_an_encoding_is_named_with_the_flag_that_accepts_it(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "old.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read(path)


def test_bytes_of_neither_encoding_stop_or_are_replaced_or_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(b"one<|endoftext|>\x81\xff<|endoftext|>two")
    with pytest.raises(DataError, match=r"bad\.txt is neither UTF-8 nor cp1252.*--errors skip"):
        read(path, encoding="cp1252")
    assert "\ufffdÿ" in read(path, encoding="cp1252", errors="replace")
    batches = list(read_document_batches([path], encoding="cp1252", errors="skip"))
    assert [len(batch.bounds) for batch in batches] == [2]
    assert "left out 1 document that is not UTF-8" in caplog.text


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("bad.txt", b"a\xff<|endoftext|>b<|endoftext|>\xfe"),
        ("bad.jsonl", b'{"text": "a\xff"}\n{"text": "b"}\n{"text": "\\ud800"}\n'),
        ("bad.csv", b"text\na\xff\nb\n\xfe\n"),
    ],
)
def test_replaced_documents_are_counted_by_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, content: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    list(read_document_batches([path], errors="replace"))
    assert f"{name}: put U+FFFD for bytes that are not UTF-8 in 2 documents" in caplog.text


def test_a_replaced_page_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "bad.html"
    path.write_bytes(b"<p>caf\xe9</p>")
    (batch,) = read_document_batches([path], errors="replace")
    assert bytes(batch.data) == "caf\ufffd".encode()
    assert "bad.html: put U+FFFD for bytes that are not UTF-8 in 1 document" in caplog.text


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.html", b"<script>\xff</script><p>hi</p>"),
        ("a.jsonl", b'{"text": "hi", "author": "\xff"}\n'),
    ],
)
def test_what_was_replaced_beside_the_text_does_not_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, content: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    (batch,) = read_document_batches([path], errors="replace")
    assert bytes(batch.data) == b"hi" and "U+FFFD" not in caplog.text


def test_records_are_replaced_as_plain_text_is(tmp_path: Path) -> None:
    bad = b"a\xe2\x82 b"
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "' + bad + b'"}\n')
    (batch,) = read_document_batches([tmp_path / "a.jsonl"], errors="replace")
    assert bytes(batch.data) == bad.decode(errors="replace").encode()


def test_standard_input_is_in_the_named_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO("é".encode("latin-1")))
    monkeypatch.setattr(sys, "stdin", stream)
    blocks = list(read_text_blocks(["-"], encoding="latin-1"))
    assert str(blocks[0], "utf-8") == "é"


def test_a_pipe_is_in_the_named_encoding() -> None:
    reader, writer = os.pipe()
    os.write(writer, "é".encode("latin-1"))
    os.close(writer)
    assert read(Path(f"/dev/fd/{reader}"), encoding="latin-1") == "é"
    os.close(reader)


@pytest.mark.parametrize("encoding", ["no-such-thing", "base64"])
def test_an_unknown_encoding_is_refused(tmp_path: Path, encoding: str) -> None:
    with pytest.raises(ConfigError, match=rf"encoding is '{encoding}'; .*latin-1"):
        read(tmp_path / "x.txt", encoding=encoding)
