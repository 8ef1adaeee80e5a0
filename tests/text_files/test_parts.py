"""The parts of a corpus contain every document once, in order, wherever it is split."""

import gzip
import json
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

from groundup.errors import DataError
from groundup.text_files import (
    END_OF_TEXT,
    Part,
    Reading,
    cut_into_parts,
    cut_part,
    find_sources,
    parts,
    read,
)

from .conftest import documents_of as documents_in

# Separators, parts of them and lookalikes, in any order.
pieces = st.sampled_from(["a", "é", "\n", " ", "<|", "<|end|>", "|>", "日"])


def documents_of(found: list[Part], reading: Reading) -> list[bytes]:
    return documents_in(batch for part in found for batch in read(part, reading, batch_bytes=7))


@hypothesis.given(
    text=st.lists(pieces, min_size=1, max_size=60).map("".join),
    mark=st.sampled_from(["", "\ufeff"]),
    part_bytes=st.integers(1, 40),
    window=st.integers(1, 30),
)
def test_parts_of_plain_text_partition_its_documents(
    tmp_path_factory: pytest.TempPathFactory, text: str, mark: str, part_bytes: int, window: int
) -> None:
    path = tmp_path_factory.mktemp("parts") / "text.txt"
    path.write_text(mark + text)
    reading = Reading(("<|end|>",))
    found = cut_into_parts(find_sources([path]), part_bytes, reading)
    assert sum(part.num_bytes for part in found) == path.stat().st_size
    expected = [d.encode() for d in text.split("<|end|>") if d]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "_WINDOW_BYTES", window)
        assert documents_of(found, reading) == expected
        smaller = [one for part in found for one in cut_part(part, 5, reading)]
        assert documents_of(smaller, reading) == expected


@hypothesis.given(
    documents=st.lists(st.text(max_size=20), min_size=1, max_size=20),
    part_bytes=st.integers(1, 200),
)
def test_parts_of_json_lines_partition_their_records(
    tmp_path_factory: pytest.TempPathFactory, documents: list[str], part_bytes: int
) -> None:
    path = tmp_path_factory.mktemp("parts") / "text.jsonl"
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in documents]
    path.write_bytes("\n\n".join(lines).encode("utf-8", "replace"))
    kept = [json.loads(line)["text"].encode() for line in path.read_bytes().split(b"\n") if line]
    found = cut_into_parts(find_sources([path]), part_bytes, Reading())
    assert documents_of(found, Reading()) == [document for document in kept if document]


def test_only_seekable_text_is_split(tmp_path: Path) -> None:
    text = "a page of text " * 50
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text.encode(), 0))
    (tmp_path / "c.csv").write_text(f"text\n{text}")
    (tmp_path / "d.txt").write_text("small")
    (tmp_path / "e.txt").write_text("small too")
    sources = find_sources([tmp_path])

    def cut(separators: list[str], **options: Any) -> list[list[str]]:
        found = cut_into_parts(sources, 300, Reading(tuple(separators), **options))
        return [[Path(source).name for source in part.sources] for part in found]

    whole = [["b.txt.gz"], ["c.csv"], ["d.txt", "e.txt"]]
    assert cut([END_OF_TEXT]) == [["a.txt"]] * 3 + whole
    assert cut([END_OF_TEXT], errors="skip") == [["a.txt"]] * 3 + whole
    # aaa contains a separator at 0 or at 1, depending on where the search starts.
    for separators in (["aa"], ["ab", "ba"], ["<end>", "end"], ["<a", "<a>"]):
        assert cut(separators) == [["a.txt"], *whole]


def test_errors_in_a_part_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "good"}\n' * 10 + '{"text": 3}\n')
    *_, last = cut_into_parts(find_sources([path]), 100, Reading())
    with pytest.raises(DataError, match=r"a\.jsonl after byte 102, line 5 holds 3"):
        list(read(last, Reading()))
    text = tmp_path / "a.txt"
    text.write_bytes(b"good" + END_OF_TEXT.encode() + b"bad \xff")
    found = cut_into_parts(find_sources([text]), 10, Reading())
    with pytest.raises(DataError, match=r"a\.txt, after 'bad ': not UTF-8"):
        documents_of(found, Reading())


def test_a_file_that_changes_while_being_read_raises(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for text in ("text " * 100, "text " * 100_000):
        path.write_text(text)
        whole = Part(tuple(find_sources([path])))
        part, *_ = cut_into_parts(whole.sources, 400, Reading())
        path.write_text("short")
        for one in (whole, part):
            with pytest.raises(DataError, match=r"a\.txt (changed|cannot be read: .*truncated)"):
                list(read(one, Reading()))
    path.unlink()
    with pytest.raises(DataError, match=r"a\.txt (does not exist|cannot be read)"):
        list(read(whole, Reading()))
