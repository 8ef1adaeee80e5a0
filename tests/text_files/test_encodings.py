"""Files that are not UTF-8: detection by byte order mark, flag or text."""

import gzip
import io
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from groundup.errors import DataError
from groundup.text_files import Reading, cut_into_parts, find_sources
from groundup.text_files import read as read_part
from groundup.text_files.encodings import guess_encoding

from .conftest import documents_of
from .conftest import read as read_documents

TEXT = "Über den Wäldern, café\n" * 40


def read(*paths: Path, **options: Any) -> str:
    return b"".join(read_documents(*paths, **options)).decode()


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-16-be", "latin-1", "iso2022_jp"])
@pytest.mark.parametrize("batch_bytes", [7, 1 << 20])
def test_a_folder_may_mix_encodings(tmp_path: Path, encoding: str, batch_bytes: int) -> None:
    text = "東京\n" if encoding == "iso2022_jp" else TEXT
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text.encode(encoding)))
    (tmp_path / "c.txt").write_text(TEXT, encoding="utf-8-sig")
    (tmp_path / "d.txt").write_bytes(TEXT.encode("utf-16"))
    (tmp_path / "e.html").write_bytes(f"<p>{text}".encode(encoding))
    expected = text * 2 + TEXT * 2 + " ".join(text.split())
    assert read(tmp_path, encoding=encoding, batch_bytes=batch_bytes) == expected


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("repeats", [1, 300])
def test_utf16_and_utf32_need_no_flag(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, encoding: str, repeats: int
) -> None:
    """Detected by the byte order mark, or by zeros in every other byte."""
    (tmp_path / "a.txt").write_bytes((TEXT * repeats).encode(encoding))
    (tmp_path / "b.csv").write_bytes("text\nné\n".encode(encoding))
    assert read(tmp_path) == TEXT * repeats + "né"
    assert caplog.text.count(f"read as {encoding}") == 2 * (encoding.count("-") - 1)
    parts = cut_into_parts(find_sources([tmp_path / "a.txt"]), 500 * repeats, Reading())
    assert len(parts) > 3
    batches = (batch for part in parts for batch in read_part(part, Reading()))
    assert b"".join(documents_of(batches)).decode() == TEXT * repeats


@pytest.mark.parametrize(
    ("data", "encoding", "text"),
    [
        # Looks like UTF-8.
        ("plain letters".encode("utf-16-le"), "utf-16-le", "plain letters"),
        # The start of an incomplete character.
        ("abÃ".encode("latin-1"), "latin-1", "abÃ"),
        ("né\0".encode(), "latin-1", "né\0"),
    ],
)
def test_the_flag_applies_to_text_that_is_not_utf8(
    tmp_path: Path, data: bytes, encoding: str, text: str
) -> None:
    (tmp_path / "old.txt").write_bytes(data)
    assert read(tmp_path, encoding=encoding) == text


def test_undecodable_bytes_raise_or_are_replaced_or_skipped(tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"one<|endoftext|>\x81\xff<|endoftext|>two")
    with pytest.raises(DataError, match=r"bad\.txt is neither UTF-8 nor cp1252"):
        read(tmp_path, encoding="cp1252")
    assert read(tmp_path, encoding="cp1252", errors="replace") == "one\ufffdÿtwo"
    assert read(tmp_path, encoding="cp1252", errors="skip") == "onetwo"


def test_standard_input_is_plain_text_in_the_named_encoding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for data, options in ("a<|endoftext|>é".encode(), {}), (b"a\xe9", {"encoding": "latin-1"}):
        stream = io.BufferedReader(io.BytesIO(data))
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream))
        assert read(Path("-"), **options) == "aé"


RUSSIAN = "Вечером мальчик вышел во двор и увидел, что идёт снег."
JAPANESE = "夜になると、子どもは庭に出て、雪が降っているのを見ました。"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cp1252", "L’été dernier, nous avons marché jusqu’à la forêt où mon frère habitait déjà."),
        ("cp1250", "Když přišel večer, měsíc osvětlil střechy a děti šly pěšky domů."),
        *((name, RUSSIAN) for name in ("cp1251", "koi8-r", "cp866")),
        ("cp1253", "Το βράδυ το παιδί βγήκε στην αυλή και είδε ότι χιόνιζε."),
        ("cp1255", "בערב יצא הילד אל החצר וראה שיורד שלג."),
        ("cp1256", "في المساء خرج الطفل إلى الفناء ورأى أن الثلج يتساقط."),
        *((name, JAPANESE) for name in ("shift_jis", "euc_jp")),
        ("euc_kr", "저녁이 되자 아이는 마당으로 나가서 눈이 내리는 것을 보았다."),
        ("gb18030", "到了晚上，孩子走到院子里，看见天上下着大雪，他说这是他来这里以后最好的一天。"),
        ("big5", "到了晚上，孩子走到院子裡，看見天上下著大雪，他說這是他來這裡以後最好的一天。"),
    ],
)
def test_encodings_are_guessed_from_the_language(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, text: str
) -> None:
    (tmp_path / "old.txt").write_bytes(b"A first line.\n" + text.encode(name))
    (tmp_path / "old.txt.gz").write_bytes(gzip.compress((text * 9_000).encode(name)))
    (tmp_path / "page.html").write_bytes(f"<p>{text}".encode(name))
    (tmp_path / "t.jsonl").write_bytes(json.dumps({"text": text}, ensure_ascii=False).encode(name))
    assert read(tmp_path) == f"A first line.\n{text}{text * 9_000}{text}{text}"
    assert caplog.text.count(f"read as {name}") == 4
    line = f'1999: the report says "{text}" and nothing else.\n'
    assert guess_encoding((line * 3).encode(name)[:-40]) == name


@pytest.mark.parametrize("part_bytes", [1 << 20, 8 << 20])
def test_all_parts_agree_on_a_late_encoding(tmp_path: Path, part_bytes: int) -> None:
    text = ("plain text " * 3_000 + "<|endoftext|>\n") * 40 + "café déjà vu\n<|endoftext|>"
    text *= 4
    (tmp_path / "a.txt").write_bytes(text.encode("cp1252"))
    parts = cut_into_parts(find_sources([tmp_path]), part_bytes, Reading())
    assert (len(parts) > 1) == (part_bytes < 8 << 20)
    found = [one for part in parts for one in documents_of(read_part(part, Reading()))]
    assert found == [one.encode() for one in text.split("<|endoftext|>") if one]


def test_a_truncated_last_character_is_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a.txt", "b.txt.gz", "c.html", "d.csv"):
        data = "text\nné\n日本".encode()[:-1]
        (tmp_path / name).write_bytes(gzip.compress(data) if name == "b.txt.gz" else data)
    assert read(tmp_path) == "text\nné\n日" * 2 + "text né 日né日"
    assert caplog.text.count("ends in the middle of a character, which is dropped") == 4
    # Corrupted UTF-8 is not taken for another encoding.
    (tmp_path / "a.txt").write_bytes(
        "né né né \xff".encode("latin-1").replace(b"\xe9", b"\xc3\xa9")
    )
    with pytest.raises(DataError, match=r"a\.txt, after 'né né né ': not UTF-8"):
        read(tmp_path)


def test_noise_has_no_encoding() -> None:
    assert all(guess_encoding(random.Random(seed).randbytes(400)) is None for seed in range(20))
    assert guess_encoding(b"one bad byte \xff here") is None
    assert guess_encoding(b"Copyright \xa9 2004 Jos\xe9") == "cp1252"
