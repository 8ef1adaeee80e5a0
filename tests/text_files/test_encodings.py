"""Files that are not UTF-8: named with the flag that accepts them, and then read."""

import gzip
import io
import json
import os
import sys
from pathlib import Path

import pytest

from groundup.errors import ConfigError, DataError
from groundup.text_files import opening, read_document_batches

TEXT = "Über den Wäldern, café\n" * 40


def read(*paths: Path, **options: object) -> str:
    texts = []
    for batch in read_document_batches(paths, **options):  # type: ignore[arg-type]
        texts += [str(memoryview(batch.data)[a:b], "utf-8") for a, b in batch.bounds.tolist()]
    return "".join(texts)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-16-be", "latin-1", "cp1252"])
@pytest.mark.parametrize("batch_bytes", [7, 1 << 20])
def test_a_file_in_the_named_encoding_is_read(
    tmp_path: Path, encoding: str, batch_bytes: int
) -> None:
    path = tmp_path / "old.txt"
    path.write_bytes(TEXT.encode(encoding))
    packed = tmp_path / "packed.txt.gz"
    packed.write_bytes(gzip.compress(TEXT.encode(encoding)))
    assert read(path, packed, encoding=encoding, batch_bytes=batch_bytes) == TEXT * 2


def test_a_file_that_only_looks_like_utf8_is_read_in_the_named_encoding(tmp_path: Path) -> None:
    path = tmp_path / "old.txt"
    path.write_bytes("plain letters".encode("utf-16-le"))
    assert read(path, encoding="utf-16-le") == "plain letters"
    path.write_text("né\0", encoding="utf-8")
    assert read(path, encoding="latin-1") == "né\0"
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
    assert "left out 1 document" in caplog.text


def test_pipes_and_standard_input_are_in_the_named_encoding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = io.TextIOWrapper(io.BytesIO("é".encode("latin-1")))
    monkeypatch.setattr(sys, "stdin", stream)
    assert read(Path("-"), encoding="latin-1") == "é"
    reader, writer = os.pipe()
    os.write(writer, "é".encode("latin-1"))
    os.close(writer)
    assert read(Path(f"/dev/fd/{reader}"), encoding="latin-1") == "é"
    os.close(reader)


@pytest.mark.parametrize("encoding", ["no-such-thing", "base64"])
def test_an_unknown_encoding_is_refused(tmp_path: Path, encoding: str) -> None:
    with pytest.raises(ConfigError, match=rf"encoding is '{encoding}'; .*latin-1"):
        read(tmp_path / "x.txt", encoding=encoding)


def test_a_named_encoding_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "old.txt"
    path.write_bytes(TEXT.encode("latin-1") * 5000)
    calls = []
    open_raw = opening._open_raw
    monkeypatch.setattr(opening, "_open_raw", lambda one: calls.append(one) or open_raw(one))
    assert read(path, encoding="latin-1") == TEXT * 5000
    assert len(calls) == 1


def test_the_error_names_the_flag_that_reads_the_text(tmp_path: Path) -> None:
    path = tmp_path / "old.txt"
    path.write_bytes(b"A first line.\n" + TEXT.encode("latin-1"))
    with pytest.raises(DataError, match=r"old\.txt, byte 14: .*--encoding latin-1"):
        read(path)
    for encoding in ("utf-16", "utf-32"):
        path.write_bytes(TEXT.encode(encoding))
        with pytest.raises(DataError, match=f"--encoding {encoding} "):
            read(path)
