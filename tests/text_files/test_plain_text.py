"""Plain text: documents cut exactly where they end, bad bytes, streams, and flat memory."""

import contextlib
import gzip
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import zstandard

from groundup.errors import DataError
from groundup.text_files import DocumentBatch, read_document_batches, read_text_blocks
from groundup.text_files.small_files import read_small_files

SEPARATOR = "<|endoftext|>"
TEXTS = ["One day, it rained.", "\nZoë ran home.\n", "日本語 and 🦊\x00", " ", "the end"]
PLAIN = SEPARATOR.join(TEXTS).encode()

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def documents_of(batches: Iterable[DocumentBatch]) -> list[bytes]:
    return [
        bytes(batch.data[begin:end]) for batch in batches for begin, end in batch.bounds.tolist()
    ]


def read(*inputs: Path | str, **options: Any) -> list[bytes]:
    return documents_of(read_document_batches(inputs, **options))


def test_documents_are_kept_to_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_bytes(b" one \r\n<|endoftext|>\n\n<|endoftext|><|endoftext|>\ntwo\n")
    assert read(path) == [b" one \r\n", b"\n\n", b"\ntwo\n"]
    path.write_text(SEPARATOR * 50)
    assert read(path, batch_bytes=20) == []
    path.write_bytes(PLAIN)
    assert read(path, separators=(), batch_bytes=3) == [PLAIN]


def split_slowly(text: bytes, separators: list[bytes]) -> list[bytes]:
    """The definition: from the left, the longest separator at each place ends a document."""
    documents, current, place = [], b"", 0
    longest_first = sorted(separators, key=len, reverse=True)
    while place < len(text):
        match = next((s for s in longest_first if text.startswith(s, place)), None)
        if match is None:
            current += text[place : place + 1]
        else:
            documents.append(current)
            current = b""
        place += len(match) if match else 1
    return [document for document in [*documents, current] if document]


@hypothesis.given(
    text=st.text("ab|é", min_size=1, max_size=60),
    separators=st.lists(st.text("ab|", min_size=1, max_size=4), max_size=4, unique=True),
    batch_bytes=st.integers(1, 40),
    packing=st.sampled_from(["", ".gz"]),
)
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
def test_batches_cut_where_the_definition_does(
    tmp_path: Path, text: str, separators: list[str], batch_bytes: int, packing: str
) -> None:
    path = tmp_path / f"corpus.txt{packing}"
    path.write_bytes(PACKERS[packing](text.encode()))
    batches = list(read_document_batches([path], separators=separators, batch_bytes=batch_bytes))
    expected = split_slowly(text.encode(), [separator.encode() for separator in separators])
    assert documents_of(batches) == expected
    for batch in batches:
        end = batch.offset + len(batch.data)
        assert bytes(batch.data) == text.encode()[batch.offset : end]


@pytest.mark.parametrize("packing", PACKERS)
def test_a_document_longer_than_a_batch_is_not_split(tmp_path: Path, packing: str) -> None:
    documents = [b"short", b"x" * 300_000, b"y" * 1_000_001, b"short too"]
    path = tmp_path / f"corpus.txt{packing}"
    path.write_bytes(PACKERS[packing](SEPARATOR.encode().join(documents)))
    assert read(path, batch_bytes=1000) == documents


BAD = b"good one<|endoftext|>bad \xff\xfe one<|endoftext|>good too<|endoftext|>cut \xe2\x82"


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("batch_bytes", [1, 10, 25, 1 << 20])
def test_invalid_utf8_is_named_replaced_or_left_out(
    tmp_path: Path, packing: str, batch_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / f"corpus.txt{packing}"
    path.write_bytes(PACKERS[packing](BAD))
    with pytest.raises(DataError, match=rf"{path}, byte {BAD.index(0xFF)}: .*--errors replace"):
        read(path, batch_bytes=batch_bytes)
    replaced = BAD.decode(errors="replace").encode()
    expected = replaced.split(SEPARATOR.encode())
    assert read(path, batch_bytes=batch_bytes, errors="replace") == expected
    blocks = read_text_blocks([path], errors="replace", block_bytes=batch_bytes)
    assert b"".join(map(bytes, blocks)) == replaced
    batches = list(read_document_batches([path], batch_bytes=batch_bytes, errors="skip"))
    assert documents_of(batches) == [b"good one", b"good too"]
    assert sum(batch.num_skipped for batch in batches) == 2
    assert "left out 2 documents that are not UTF-8" in caplog.text
    text = b"".join(map(bytes, read_text_blocks([path], errors="skip")))
    assert [part for part in text.split(SEPARATOR.encode()) if part] == [b"good one", b"good too"]


@hypothesis.given(
    parts=st.lists(
        st.sampled_from([b"a", "é".encode(), "🦊".encode(), b"\xff", b"\xf0\x9f", b"|"])
    ),
    batch_bytes=st.integers(1, 12),
)
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
def test_bad_bytes_are_replaced_document_by_document(
    tmp_path: Path, parts: list[bytes], batch_bytes: int
) -> None:
    text = b"start" + b"".join(parts)
    path = tmp_path / "corpus.txt"
    path.write_bytes(text)
    documents = [document for document in text.split(b"|") if document]
    options: dict[str, Any] = {"separators": "|", "batch_bytes": batch_bytes}
    replaced = [document.decode(errors="replace").encode() for document in documents]
    assert read(path, errors="replace", **options) == replaced
    good = [old for old, new in zip(documents, replaced, strict=True) if old == new]
    assert read(path, errors="skip", **options) == good


SCRIPT = """
import sys
from groundup.text_files import read_document_batches
from groundup.errors import DataError
try:
    for batch in read_document_batches(["-"], batch_bytes=int(sys.argv[1])):
        for begin, end in batch.bounds.tolist():
            print(bytes(batch.data[begin:end]))
except DataError as error:
    sys.exit(str(error))
"""


def run_script(
    script: str, *arguments: object, text: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, input=text, capture_output=True)


def test_standard_input_is_read_as_plain_text() -> None:
    done = run_script(SCRIPT, 10, text=PLAIN)
    assert done.stderr == b""
    assert done.stdout.decode().splitlines() == [str(text.encode()) for text in TEXTS]


def test_empty_standard_input_is_an_error() -> None:
    assert b"- is empty" in run_script(SCRIPT, 100).stderr


def test_a_named_pipe_is_read_but_not_opened_to_find_out_what_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.txt"
    os.mkfifo(pipe)
    # Nobody writes to it yet, so that opening it would wait for ever; and whoever did would leave.
    assert read_small_files([pipe], 0, 1 << 20) == []
    with subprocess.Popen(["sh", "-c", f"printf 'one<|endoftext|>two' > {pipe}"]):
        assert read(pipe) == [b"one", b"two"]


MEMORY_SCRIPT = """
import sys
from groundup.text_files import read_document_batches, read_text_blocks

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

path, function = sys.argv[1:]
blocks = {"batches": lambda: read_document_batches([path], batch_bytes=1 << 20),
          "blocks": lambda: read_text_blocks([path], block_bytes=1 << 20)}[function]()
before = peak = None
for block in blocks:
    data = getattr(block, "data", block)
    data[:].tobytes() if isinstance(data, memoryview) else data
    before = before or resident()
    peak = max(peak or 0, resident())
print(peak - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("function", ["batches", "blocks"])
def test_memory_stays_flat_over_a_long_file(tmp_path: Path, packing: str, function: str) -> None:
    path = tmp_path / f"long.txt{packing}"
    path.write_bytes(PACKERS[packing](("word " * 2000 + SEPARATOR).encode() * 4000))
    done = run_script(MEMORY_SCRIPT, path, function)
    assert done.stderr == b""
    assert int(done.stdout) < 16 << 20


def test_reading_needs_neither_torch_nor_the_extras(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("x")
    script = (
        "import sys\nfrom groundup.text_files import read_document_batches\n"
        "list(read_document_batches([sys.argv[1]]))\n"
        "print({'torch', 'pyarrow', 'zstandard'} & set(sys.modules))"
    )
    assert run_script(script, tmp_path / "corpus.txt").stdout == b"set()\n"


def test_a_batch_outlives_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    texts = [f"document {number} " * 400 for number in range(50)]
    path.write_text(SEPARATOR.join(texts))
    batches = list(read_document_batches([path], batch_bytes=9000))
    assert len(batches) > 10
    assert documents_of(batches) == [text.encode() for text in texts]


SHRINKING_SCRIPT = """
import os, sys
from groundup.errors import DataError
from groundup.text_files import read_document_batches
path = sys.argv[1]
try:
    for batch in read_document_batches([path], batch_bytes=int(sys.argv[2])):
        os.truncate(path, 4096)
        batch.data[-1]
except DataError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
"""


@pytest.mark.parametrize("text_bytes", [1 << 20, 70 << 20])
def test_a_file_that_shrinks_is_one_line(tmp_path: Path, text_bytes: int) -> None:
    """A mapped one too, which a document is that is very long: there it is met as a bus error."""
    path = tmp_path / "corpus.txt"
    path.write_bytes(PLAIN)
    # No bytes are written: what a file is said to have beyond its end reads as zeros.
    os.truncate(path, text_bytes)
    done = run_script(SHRINKING_SCRIPT, path, 10)
    assert done.returncode == 2
    message = f"error: {path} became shorter while it was being read; run the command again"
    assert done.stderr.decode().startswith(message) and done.stderr.count(b"\n") == 1


def test_records_of_a_file_that_shrinks_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"text": "word word"}\n' * 10_000)
    batches = read_document_batches([path], batch_bytes=100)
    next(batches)
    os.truncate(path, 22 * 5000)
    with pytest.raises(DataError, match=rf"{path} became shorter"):
        list(batches)


def test_small_files_need_no_more_files_than_may_be_open(tmp_path: Path) -> None:
    names = [tmp_path / f"{number:03}.txt" for number in range(100)]
    for path in names:
        path.write_text(f"text {path.name}<|endoftext|>more")
    script = (
        "import resource, sys\n"
        "from groundup.text_files import read_document_batches\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))\n"
        "batches = list(read_document_batches([sys.argv[1]]))\n"
        "print([bytes(batch.data) for batch in batches])\n"
    )
    done = run_script(script, tmp_path)
    assert done.stdout.decode() == f"{[path.read_bytes() for path in names]}\n"


def test_files_that_cannot_be_read_are_skipped_by_wish(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.txt.gz").write_bytes(b"not packed")
    (tmp_path / "c.txt").write_text("")
    (tmp_path / "d.txt").write_text("two")
    with pytest.raises(DataError, match=r"b\.txt\.gz is damaged"):
        list(read_text_blocks([tmp_path]))
    blocks = read_text_blocks([tmp_path], on_error="skip")
    assert [bytes(block) for block in blocks] == [b"one", b"two"]
    assert "skipped 1 input (cannot be read)" in caplog.text
    assert "b.txt.gz" in caplog.text and "skipped 1 input (empty)" in caplog.text
    (tmp_path / "e.txt").write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"e\.txt, byte 0: not UTF-8"):
        list(read_text_blocks([tmp_path], on_error="skip"))


def pack_zeros(path: Path, num_bytes: int) -> Path:
    """A file of a few kilobytes that unpacks to `num_bytes` of zeros."""
    with contextlib.ExitStack() as stack:
        file: Any = stack.enter_context(path.open("wb"))
        if path.suffix == ".gz":
            file = stack.enter_context(gzip.open(file, "wb", compresslevel=1))
        else:
            file = stack.enter_context(zstandard.ZstdCompressor().stream_writer(file))
        for _ in range(num_bytes >> 20):
            file.write(bytes(1 << 20))
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
@pytest.mark.parametrize("packing", [".gz", ".zst"])
def test_a_long_document_of_a_packed_file_is_not_held(tmp_path: Path, packing: str) -> None:
    path = pack_zeros(tmp_path / f"zeros.txt{packing}", 192 << 20)
    script = """
import sys
from groundup.runtime import peak_memory_bytes
from groundup.text_files import read_document_batches
before = peak_memory_bytes()
[batch] = read_document_batches([sys.argv[1]], batch_bytes=1 << 20)
assert batch.bounds.tolist() == [[0, 192 << 20]] == [[0, len(batch.data)]]
print(peak_memory_bytes() - before)
"""
    done = run_script(script, path)
    assert done.stderr == b""
    # A step of zstd gives up to 64 MB, and what is read of it is there a second time.
    assert int(done.stdout) < 160 << 20


def test_the_document_behind_a_long_one_of_a_stream_is_found(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt.gz"
    texts = [b"one", b"x" * 1000, b"two", b"y" * 999 + b"<|endoftext", b"z"]
    path.write_bytes(gzip.compress(SEPARATOR.encode().join(texts)))
    for batch_bytes in (1, 10, 100):
        assert read(path, batch_bytes=batch_bytes) == texts


def test_a_long_document_that_the_disk_cannot_hold_is_an_error(tmp_path: Path) -> None:
    path = pack_zeros(tmp_path / "zeros.txt.gz", 4 << 20)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(DataError, match=r"zeros.txt.gz holds a document .* TMPDIR"):
            read(path, batch_bytes=1 << 16)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_text_blocks_may_be_cut_where_the_caller_finds_a_place(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_bytes(PLAIN)

    def after_space(text: memoryview) -> int:
        return bytes(text).rfind(b" ") + 1

    options: dict[str, Any] = {"separators": (), "block_bytes": 16, "find_cut": after_space}
    blocks = [bytes(block) for block in read_text_blocks([path], **options)]
    assert b"".join(blocks) == PLAIN
    assert blocks[0] == b"One day, it "
