"""A realistic folder: every kind of file, intact, unusual and damaged."""

import gzip
import io
import json
import os
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from groundup.cli.main import main
from groundup.data.shards import open_shards
from groundup.errors import DataError, MissingExtraError
from groundup.text_files import archives, read_document_batches
from groundup.tokenizer import Tokenizer

WORDS = "the fox and the bear went down to the river and saw the moon in the water there "
WORD_XML = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
CHAT = [{"from": "human", "value": "Who ran?"}, {"from": "gpt", "value": "The fox."}]


def pack_zip(files: dict[str, str | bytes]) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return sink.getvalue()


def pack_tar(files: dict[str, bytes], mode: str = "w:gz") -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return sink.getvalue()


def make_pdf(text: str) -> bytes:
    content = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET"
    parts = [
        "<</Type/Catalog/Pages 2 0 R>>",
        "<</Type/Pages/Kids[3 0 R]/Count 1>>",
        "<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R"
        "/Resources<</Font<</F1 5 0 R>>>>>>",
        f"<</Length {len(content)}>>stream\n{content}\nendstream",
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    out, offsets = "%PDF-1.4\n", list[int]()
    for number, part in enumerate(parts, start=1):
        offsets.append(len(out))
        out += f"{number} 0 obj{part} endobj\n"
    table = "".join(f"{offset:010d} 00000 n \n" for offset in offsets)
    out += f"xref\n0 6\n0000000000 65535 f \n{table}trailer<</Size 6/Root 1 0 R>>\n"
    return f"{out}startxref\n{len(out) - len(table) - 67}\n%%EOF".encode()


def make_docx(*lines: str) -> bytes:
    """The rows of a tab-separated table."""
    runs = [
        [f"<w:p><w:r><w:t>{one}</w:t></w:r></w:p>" for one in line.split("\t")] for line in lines
    ]
    text = "".join(
        f"<w:tr>{''.join(f'<w:tc>{one}</w:tc>' for one in cells)}</w:tr>" if cells[1:] else cells[0]
        for cells in runs
    )
    return pack_zip({"word/document.xml": f'<w:d xmlns:w="{WORD_XML}">{text}</w:d>'})


def make_epub(*chapters: str) -> bytes:
    items = "".join(f'<item id="c{n}" href="c%20{n}.html"/>' for n in range(len(chapters)))
    order = "".join(f'<itemref idref="c{n}"/>' for n in reversed(range(len(chapters))))
    return pack_zip(
        {
            "META-INF/container.xml": '<c><rootfile full-path="in/b.opf"/></c>',
            "in/b.opf": f"<package>{items}{order}</package>",
            **{f"in/c {n}.html": f"<p>{one}</p>" for n, one in enumerate(chapters)},
        }
    )


NOTEBOOK = {
    "metadata": {"kernelspec": {"language": "julia"}},
    "cells": [
        {"cell_type": "markdown", "source": ["# Foxes\n", "count"]},
        {"cell_type": "code", "source": "x = 1", "outputs": [{"text": "not this"}]},
    ],
}
FRENCH = "Les élèves sont déjà là, près de la forêt"
CHINESE = "我们在这里说话的时候他来了，大家都看他"
FILES: dict[str, tuple[bytes, list[str]]] = {
    "a.md": (f"# Notes\n{WORDS * 40}".encode(), [f"# Notes\n{WORDS * 40}"]),
    "b.html": (b"<title>Page</title><p>seen<script>not</script>", ["Page\n\nseen"]),
    "c.py": (b"def f(x):\n    return x\n" * 40, ["def f(x):\n    return x\n" * 40]),
    "d.ipynb": (json.dumps(NOTEBOOK).encode(), ["# Foxes\ncount\n\n```julia\nx = 1\n```"]),
    "e.csv": (b"id;remark\n1;a long remark\n2;another one\n", ["a long remark", "another one"]),
    "f.jsonl": (
        json.dumps({"conversations": CHAT}).encode() + b'\n{"cut": "',
        ["User: Who ran?\n\nAssistant: The fox."],
    ),
    "g.txt": (FRENCH.encode("utf-16"), [FRENCH]),
    "h.txt": (FRENCH.encode("cp1252"), [FRENCH]),
    "i.txt": (CHINESE.encode("gb18030"), [CHINESE]),
    "j.txt": (CHINESE.encode()[:-1], [CHINESE[:-1]]),
    "k.pdf": (make_pdf("A page of text"), ["A page of text"]),
    "l.docx": (make_docx("One é", "Name\tAge", "Two"), ["One é\nName\tAge\nTwo"]),
    "m.epub": (make_epub("The end", "The beginning"), ["The beginning\n\nThe end"]),
    "n.zip": (
        pack_zip(
            {
                "x/a.txt": "in a zip",
                "b.docx": make_docx("in both"),
                "c.txt": FRENCH.encode("cp1252"),
                "d.epub": b"broken",
                "e.png": b"\x89",
                "__MACOSX/a.txt": b"\0",
            }
        ),
        ["in a zip", "in both", FRENCH],
    ),
    "o.v1.tar.gz": (pack_tar({"t/a.md": b"in a tar", "t/b.zip": b"x"}), ["in a tar"]),
    "p.tgz": (pack_tar({"a.jsonl": b'{"body": "in another"}'}), ["in another"]),
    "q.bin": (bytes(range(256)), []),
    "r.txt": (bytes(range(128, 256)) * 9, []),
    "s.txt": (b"", []),
    "t.pdf": (b"%PDF-1.4 broken", []),
    "u\n.zip": (b"PK broken", []),
    "v copy of c.py": (b"def f(x):\n    return x\n" * 40, []),
    "w.txt": (b"\0" * 500, []),
}


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd").mkdir()
    for name, (data, _) in FILES.items():
        (tmp_path / "odd" / name).write_bytes(data)
    (tmp_path / "shadow.txt").write_text("hidden")
    (tmp_path / "odd" / "x.txt").symlink_to(tmp_path / "shadow.txt")
    os.mkfifo(tmp_path / "odd" / "y.txt")
    return Path("odd")


def documents(path: Path, errors: str = "skip") -> list[str]:
    batches = read_document_batches([path], errors=errors, drop_duplicates=True)
    found = [bytes(one.data[begin:end]) for one in batches for begin, end in one.bounds.tolist()]
    return [one.decode() for one in found]


def test_every_file_yields_its_documents(odd: Path) -> None:
    assert documents(odd) == [text for _, texts in FILES.values() for text in texts]
    for name, (_, texts) in FILES.items():
        if texts:
            assert documents(odd / name) == texts, name


def test_a_table_lists_what_was_read_and_why_others_were_skipped(
    odd: Path, shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    Tokenizer({id: bytes([id]) for id in range(256)}, [], ["<|endoftext|>"]).save("tokenizer.json")
    words = ("data", "prepare", odd)
    assert main([*map(str, words)]) == 0
    page, warnings = capsys.readouterr()
    assert "warning" not in warnings
    lines = page[page.index("\nfiles\n") :].splitlines()[3:]
    rows = {line.split()[0]: [line.split()[1], *line.split()[-3:]] for line in lines[:15]}
    # Columns: files, files read, documents, files skipped.
    assert rows[".txt"] == ["9", "4", "4", "5"] and rows[".py"] == ["2", "1", "1", "1"]
    assert rows[".zip"] == ["2", "1", "3", "1"] and rows[".pdf"] == ["2", "1", "1", "1"]
    assert rows[".tar.gz"] == ["1", "1", "1", "0"] and rows[".bin"][1:] == ["0", "0", "1"]
    for line in (
        "read as cp1252: odd/h.txt",
        "read as gb18030: odd/i.txt",
        "ends in the middle of a character, which is dropped: odd/j.txt",
        "skipped, a duplicate of odd/c.py: odd/v copy of c.py",
        "skipped, a link out of the folder; see --follow-links: odd/x.txt",
        "skipped, not a regular file: odd/y.txt",
        "skipped, empty: odd/s.txt",
        "skipped, contains zero bytes: binary data, not text; leave it out: odd/w.txt",
        "skipped, cannot be read: File is not a zip file: odd/u\\n.zip",
        "skipped, unknown suffix: odd/q.bin",
        "c.txt: read as cp1252; d.epub: cannot be read: File is not a zip file; skipped "
        "(unknown suffix): e.png: odd/n.zip",
    ):
        assert page.count(line) == 1, line
    assert sum(one.num_documents for one in open_shards("shards").index.sources) == len(
        documents(odd)
    )
    for strict in ("--strict", "--errors=strict"):
        assert "f.jsonl line 2 is not JSON" in shell.fails(*words, strict, "--overwrite")
    assert "copy of c.py" not in shell(*words, "--overwrite", "--no-drop-duplicates")


def test_archives_have_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"{n}.txt": b"word " * 20_000 for n in range(9)}
    for name, data in (
        ("a.zip", pack_zip({**files})),
        ("b.tar.gz", pack_tar(files)),
        ("c.tar", pack_tar({"x.bin": b"\0" * 1_000_000}, "w")),
    ):
        (tmp_path / name).write_bytes(data)
        with monkeypatch.context() as context:
            context.setattr(archives, "_MIN_LIMIT_BYTES", 300_000)
            context.setattr(archives, "_MAX_RATIO", 0)
            with pytest.raises(DataError, match=f"{name} unpacks to more than 300,000 bytes"):
                documents(tmp_path / name, "strict")
            context.setattr(archives, "_MAX_MEMBERS", 1)
            context.setattr(archives, "_MIN_LIMIT_BYTES", 1 << 30)
            if name != "c.tar":
                with pytest.raises(DataError, match=f"{name} has more than 1 files"):
                    documents(tmp_path / name, "strict")
    (tmp_path / "d.zip.gz").write_bytes(gzip.compress(pack_zip({"a.txt": "x"})))
    with pytest.raises(DataError, match=r"d\.zip\.gz is compressed twice; unpack it"):
        documents(tmp_path / "d.zip.gz")


@pytest.mark.slow
def test_damaged_files_are_reported_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "z.txt").write_text("left")
    for name in ("d.ipynb", "k.pdf", "l.docx", "m.epub", "n.zip", "o.v1.tar.gz"):
        data = FILES[name][0]
        for position in range(0, len(data), max(1, len(data) // 12)):
            for damaged in (data[:position], data[:position] + b"\xff\0<" + data[position + 3 :]):
                (tmp_path / name).write_bytes(damaged)
                assert documents(tmp_path)[-1] == "left"
        (tmp_path / name).unlink()


def test_a_missing_library_is_named(odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pypdf", None)
    assert "A page of text" not in documents(odd)
    with pytest.raises(MissingExtraError, match=r"groundup\[documents\]"):
        documents(odd / "k.pdf")
