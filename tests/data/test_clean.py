"""Cleaning, compared with plain Python: exact shingle sets, counts and duplicates."""

import json
import random
import re
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest

from groundup._native import class_of
from groundup.data.clean import (
    CleanSettings,
    CleanSummary,
    DuplicateIndex,
    clean,
    encode_line,
    judge,
    measure,
    num_bands_for,
)
from groundup.errors import ConfigError, DataError

WORDS = "fox hen rain kite home moon tree lake stone bread cloud river".split()
LETTERS = "ab Z9é.,-\n\t日本"
texts = st.lists(st.text(LETTERS, max_size=40), min_size=1, max_size=6)


def pack(documents: list[str]) -> tuple[bytes, npt.NDArray[np.int64]]:
    ends = np.cumsum([len(document.encode()) for document in documents])
    begins = np.concatenate([[0], ends[:-1]])
    return "".join(documents).encode(), np.stack([begins, ends], axis=1)


def words_of(text: str) -> list[str]:
    """Words: runs of letters and digits; single characters in scripts without spaces."""
    found = re.findall(r"[日本]|[^\W_日本]+", text)
    return ["".join(c.lower() if c.isascii() else c for c in word) for word in found]


def shingles_of(text: str, num_words: int) -> list[tuple[str, ...]]:
    words = words_of(text)
    if len(words) < num_words:
        return [tuple(words)] if words else [(text.strip(), "no words")]
    return [tuple(words[i : i + num_words]) for i in range(len(words) - num_words + 1)]


def sentence(seed: int, length: int = 60) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=length))


@hypothesis.given(documents=texts)
def test_equal_shingles_have_equal_signatures(documents: list[str]) -> None:
    signatures = [one.tobytes() for one in measure(*pack(documents), 1)["signature"]]
    expected = [frozenset(shingles_of(text, 5)) for text in documents]
    # Signatures are equal exactly if the shingle sets are.
    both = len(set(zip(signatures, expected, strict=True)))
    assert both == len(set(signatures)) == len(set(expected))


@hypothesis.given(documents=texts, num_threads=st.sampled_from([1, 3]))
def test_character_counts_match_python(documents: list[str], num_threads: int) -> None:
    measured = measure(*pack(documents), num_threads)
    assert measured["characters"].tolist() == [len(text) for text in documents]
    assert measured["spaces"].tolist() == [sum(map(str.isspace, text)) for text in documents]
    symbols = [sum(class_of(ord(c)) == class_of(ord(".")) for c in text) for text in documents]
    assert measured["symbols"].tolist() == symbols


def test_signatures_estimate_the_similarity() -> None:
    random_ = random.Random(1)
    words = [f"w{random_.randrange(10_000)}" for _ in range(2000)]
    for num_changed in (0, 20, 100):
        changed = list(words)
        for index in random_.sample(range(len(words)), num_changed):
            changed[index] = "other"
        pair = [" ".join(words), " ".join(changed)]
        one, two = measure(*pack(pair), 1)["signature"]
        first, second = (set(shingles_of(text, 5)) for text in pair)
        exact = len(first & second) / len(first | second)
        assert float((one == two).mean()) == pytest.approx(exact, abs=0.13)


def test_duplicates_are_found_in_order() -> None:
    base = sentence(1, 400)
    near = base.replace("fox", "cat", 3)
    documents = [base, sentence(2), f"  {base}\n", near, sentence(2), sentence(3)]
    measured, kept, alike, same = measure(*pack(documents), 1), 0, 1, 2
    for threshold, of_near in (0.7, alike), (0.0, kept):
        index = DuplicateIndex(threshold)
        found = judge(measured, CleanSettings(), index).tolist()
        assert found == [kept, kept, same, of_near, same, kept]
    for num_equal, of_second in (64, alike), (63, kept):
        index, pair = DuplicateIndex(0.5), measured[[0, 1]].copy()
        pair["signature"] = np.arange(128)
        pair["signature"][1, num_equal:] += 1
        assert [index.add(row) for row in pair] == [kept, of_second]


def test_bands_find_90_percent_at_the_threshold() -> None:
    assert list(map(num_bands_for, (0, 0.3, 0.5, 0.8, 0.95, 0.1))) == [0, 64, 64, 16, 8, 128]


@hypothesis.given(st.text())
def test_lines_are_json(text: str) -> None:
    data = text.encode("utf-8", "replace")
    assert json.loads(encode_line(data, 'a "field"')) == {'a "field"': data.decode()}


GOOD = [sentence(seed) for seed in range(20)]


def run(tmp_path: Path, documents: list[str], **options: Any) -> tuple[CleanSummary, list[str]]:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    names = set(CleanSettings.model_fields) & set(options)
    settings = CleanSettings(**{name: options.pop(name) for name in names})
    summary = clean([source], out, settings, overwrite=True, **options)
    kept = [json.loads(line)["text"] for line in out.read_text().splitlines()]
    return summary, kept


def test_removed_documents_are_counted_by_reason(tmp_path: Path) -> None:
    bad = {
        "short": "too short",
        "symbols": "#%&/ ()=? " * 20,
        "same": GOOD[0] + "\n",
        "near duplicates": GOOD[1] + " and",
    }
    summary, kept = run(tmp_path, [*GOOD, *bad.values()])
    assert kept == GOOD
    counts = {name: one.num_documents for name, one in summary.counts.items()}
    expected = {"read": len(GOOD) + len(bad), **dict.fromkeys(bad, 1), "kept": len(GOOD)}
    assert counts == expected
    assert summary.counts["kept"].num_bytes == sum(map(len, GOOD))
    assert summary.counts["short"].num_bytes == len(bad["short"])
    assert summary.counts["read"].num_bytes == sum(map(len, [*GOOD, *bad.values()]))


def test_threads_and_parts_do_not_change_the_result(tmp_path: Path) -> None:
    documents = [text for text in GOOD for _ in range(2)]
    first = run(tmp_path, documents, num_threads=1)
    for options in ({"num_threads": 3}, {"engine": map, "part_bytes": 500}):
        assert run(tmp_path, documents, **options)[1:] == first[1:]


@pytest.mark.parametrize(
    ("out", "settings", "error", "noun"),
    [
        ("out.txt", {}, ConfigError, "jsonl"),
        ("in.jsonl", {}, ConfigError, "one of the inputs"),
        ("there.jsonl", {}, ConfigError, "--overwrite"),
        ("out.jsonl", {"min_characters": 10_000}, DataError, "documents were removed"),
        ("out.jsonl", {"max_symbols": 1.5}, ConfigError, "max_symbols"),
    ],
)
def test_invalid_arguments_write_nothing(
    tmp_path: Path, out: str, settings: dict[str, Any], error: type[Exception], noun: str
) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": GOOD[0]}))
    (tmp_path / "there.jsonl").write_text("mine")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(error, match=noun):
        clean([tmp_path / "in.jsonl"], tmp_path / out, CleanSettings(**settings))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
