"""Cleaning against plain twins: exact sets of shingles, exact counts, exact duplicates."""

import functools
import itertools
import json
import os
import random
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from groundup._native import DuplicateIndex, class_of, hash_shingles, measure_documents
from groundup.data.clean import CleanSettings, CleanSummary, clean, measuring, overlap
from groundup.data.clean.output import encode_line
from groundup.data.clean.settings import COUNTS, MEASURED
from groundup.data.prepare import prepare
from groundup.errors import ConfigError, DataError
from groundup.text_files import END_OF_TEXT, read_document_batches
from groundup.tokenizer import Tokenizer

SPACE = 6
NOUNS = "fox hen barn moon river stone bread king winter letter candle wolf garden ship".split()
LONG = " ".join(f"The {a} saw the {b}." for a, b in itertools.permutations(NOUNS[:5], 2))


def pack(texts: Sequence[str]) -> tuple[bytes, np.ndarray[Any, Any]]:
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([len(text) for text in encoded])
    begins = ends - [len(text) for text in encoded]
    return b"".join(encoded), np.ascontiguousarray(np.stack([begins, ends], axis=1))


def measure(texts: Sequence[str], words: int = 5, threads: int = 1) -> np.ndarray[Any, Any]:
    data, bounds = pack(texts)
    found = measure_documents(data, bounds.data, b"", words, threads)
    return np.frombuffer(memoryview(found), MEASURED)


def words_of(text: str) -> list[str]:
    """The twin: runs of letters, marks and numbers; characters of scripts without spaces alone."""
    words, word = [], ""
    for character in text:
        code = ord(character)
        is_part = 1 <= class_of(code) <= 5
        is_alone = is_part and code >= 0x2E80 and not 0xAC00 <= code <= 0xD7AF
        if word and (is_alone or not is_part):
            words.append(word)
            word = ""
        if is_alone:
            words.append(character)
        elif is_part:
            word += character.lower() if code < 128 else character
    return [*words, word] if word else words


def shingles_of(text: str, num_words: int) -> list[tuple[str, ...]]:
    words = words_of(text)
    if not words:
        return [("", text.strip(" \t\n\v\f\r"))]
    if len(words) < num_words:
        return [tuple(words)]
    return [tuple(words[i : i + num_words]) for i in range(len(words) - num_words + 1)]


@functools.cache
def shingle_set(text: str) -> frozenset[tuple[str, ...]]:
    return frozenset(shingles_of(text, 5))


def jaccard(a: str, b: str) -> float:
    one, two = shingle_set(a), shingle_set(b)
    both = len(one & two)
    return both / (len(one) + len(two) - both)


texts = st.text(st.sampled_from("ab A,.\né中文가\u0301\u00a0🦊7_"), max_size=40)


@hypothesis.given(documents=st.lists(texts, min_size=1, max_size=4), num_words=st.integers(1, 4))
def test_shingles_are_runs_of_words(documents: list[str], num_words: int) -> None:
    data, bounds = pack(documents)
    hashes, counts = hash_shingles(data, bounds.data, num_words)
    expected = [shingles_of(text, num_words) for text in documents]
    assert np.frombuffer(memoryview(counts), np.int64).tolist() == list(map(len, expected))
    # Equal hashes where the runs are equal, and only there.
    found = np.frombuffer(memoryview(hashes), np.uint64).tolist()
    every = list(itertools.chain.from_iterable(expected))
    assert len(set(zip(found, every, strict=True))) == len(set(found)) == len(set(every))


@hypothesis.given(texts)
def test_counts_are_those_of_a_plain_twin(text: str) -> None:
    [row] = measure([text], words=2)
    classes = [class_of(ord(character)) for character in text]
    blank = " \t\v\f\r"
    lines = [line.strip(blank).encode() for line in text.split("\n") if line.strip(blank)]
    repeated = [line for number, line in enumerate(lines) if line in lines[:number]]
    shingles = shingles_of(text, 2)
    expected = {
        "characters": len(text),
        "spaces": classes.count(SPACE),
        "letters": sum(unicodedata.category(c).startswith("L") for c in text),
        "script_letters": 0,
        "symbols": classes.count(0),
        "line_bytes": sum(map(len, lines)),
        "repeated_line_bytes": sum(map(len, repeated)),
        "shingles": len(shingles),
        "repeated_shingles": len(shingles) - len(set(shingles)),
    }
    assert {name: int(row[name]) for name in COUNTS} == expected


def varied(count: int, seed: int) -> list[str]:
    """Documents of which many are others with some words changed."""
    rng = random.Random(seed)
    found: list[list[str]] = []
    for _ in range(count):
        if found and rng.random() < 0.7:
            words = list(rng.choice(found))
            for _ in range(rng.choice([1, 1, 2, 4, 8, 20])):
                words[rng.randrange(len(words))] = f"{rng.choice(NOUNS)}{rng.randrange(50)}"
        else:
            words = [f"{rng.choice(NOUNS)}{rng.randrange(50)}" for _ in range(120)]
        found.append(words)
    return [" ".join(words) for words in found]


def test_signatures_agree_as_often_as_documents_are_alike() -> None:
    documents = varied(60, seed=1)
    signatures = measure(documents)["signature"]
    errors = [
        np.mean(signatures[i] == signatures[j]) - jaccard(documents[i], documents[j])
        for i, j in itertools.combinations(range(len(documents)), 2)
    ]
    assert abs(np.mean(errors)) < 0.005
    assert np.max(np.abs(errors)) < 0.2


@pytest.mark.parametrize("threshold", [0.9, 0.8, 0.6, 0.4])
def test_the_first_of_near_duplicates_is_kept(threshold: float) -> None:
    settings = CleanSettings(near_duplicates=threshold)
    assert settings.recall(threshold, settings.num_bands) >= 0.9
    documents = varied(200, seed=2)
    index = DuplicateIndex(settings.num_bands, threshold)
    found = index.add(measure(documents).data, np.arange(len(documents)).data)
    matches = np.frombuffer(memoryview(found), np.int64).reshape(-1, 3)[:, 0].tolist()
    kept = [row for row, match in enumerate(matches) if match < 0]
    # What was left out is like the earlier one that is named, which was kept.
    for row, match in enumerate(matches):
        if match >= 0:
            assert match < row and match in kept
            assert jaccard(documents[row], documents[match]) > threshold - 0.15
    # What was kept is like no earlier one, as far as bands promise to find it.
    missed = sum(
        jaccard(documents[a], documents[b]) >= threshold + 0.12
        for a, b in itertools.combinations(kept, 2)
    )
    assert missed <= 1
    assert len(kept) < len(documents)


def test_memory_does_not_grow_with_the_length_of_documents() -> None:
    sizes = []
    for repeat in (1, 20):
        index = DuplicateIndex(16, 0.8)
        documents = [f"{number} {text * repeat}" for number, text in enumerate(varied(60, 3))]
        index.add(measure(documents).data, np.arange(60).data)
        sizes.append(index.memory_bytes)
    assert sizes[0] == sizes[1]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    documents = varied(300, seed=4)
    poor = ["tiny", "%$#@! " * 20 + "a b", "line of words here\n" * 9, "and so on and on " * 30]
    poor += ["Ночь тиха. " + "Пустыня внемлет богу, и звезда с звездою говорит."]
    plain = [*documents[:200], *poor, documents[0], f"\n{documents[1]}  "]
    (folder / "a.txt").write_text(END_OF_TEXT.join(plain), encoding="utf-8")
    lines = [json.dumps({"text": text}) for text in documents[200:]]
    (folder / "b.jsonl").write_text("\n".join([*lines, json.dumps({"text": END_OF_TEXT * 9})]))
    for number in range(20):
        (folder / f"c{number:02}.txt").write_text(f"{number} {LONG[number:]}")
    return folder


def documents_in(path: Path) -> list[str]:
    found = []
    for batch in read_document_batches([path]):
        found += [bytes(batch.data[a:b]).decode() for a, b in batch.bounds.tolist()]
    return found


def run(corpus: Path, out: Path | None, **options: Any) -> CleanSummary:
    settings = CleanSettings(**options.pop("settings", {}))
    return clean([corpus], out, settings, **options)


def test_every_reason_has_its_count_and_examples(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "clean.jsonl"
    settings = {"script": "latin", "max_characters": 100_000}
    summary = run(corpus, out, settings=settings)
    counts = {name: removed.num_documents for name, removed in summary.removed.items()}
    for name in ("short", "symbols", "repeated lines", "script"):
        assert counts[name] == 1, name
    assert counts["repeated words"] == 2 and counts["same"] == 2 and counts["long"] == 0
    assert counts["near duplicates"] > 50
    assert sum(counts.values()) + summary.kept_documents == summary.num_documents
    sizes = sum(removed.num_bytes for removed in summary.removed.values())
    assert sizes + summary.kept_bytes == summary.num_bytes
    report = json.loads((tmp_path / "clean.jsonl.report.json").read_text())
    assert report["kept"] == {"documents": summary.kept_documents, "bytes": summary.kept_bytes}
    [short] = report["removed"]["short"]["examples"]
    assert short == {
        "source": str(corpus / "a.txt"),
        "document": 201,
        "value": 4.0,
        "text": "tiny",
    }
    same = report["removed"]["same"]["examples"][0]
    assert same["like"] == {"source": str(corpus / "a.txt"), "document": 1}
    assert same["document"] == 206
    assert len(report["removed"]["near duplicates"]["examples"]) == 3


def test_what_is_kept_is_read_back_as_it_was(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "clean.jsonl.gz"
    summary = run(corpus, out)
    kept = documents_in(out)
    assert len(kept) == summary.kept_documents
    every = documents_in(corpus)
    # In the order of the sources, byte for byte.
    rest = iter(every)
    assert all(text in rest for text in kept)
    tokenizer = Tokenizer({i: bytes([i]) for i in range(256)}, [], [END_OF_TEXT])
    index = prepare([out], tokenizer, tmp_path / "shards").index
    assert sum(split.num_bytes for split in index.splits.values()) == summary.kept_bytes


@hypothesis.given(st.text(), st.text(min_size=1))
def test_a_line_is_the_json_of_its_text(text: str, field: str) -> None:
    line = encode_line(text.encode(), field)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert json.loads(line) == {field: text}


@pytest.mark.parametrize("suffix", ["", ".xz", ".zst", ".gz"])
def test_the_output_does_not_depend_on_threads_and_groups(
    corpus: Path, tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = []
    for threads, group_bytes in ((1, 1 << 20), (3, 1)):
        monkeypatch.setattr(measuring, "_GROUP_BYTES", group_bytes)
        out = tmp_path / f"{threads}.jsonl{suffix}"
        run(corpus, out, num_threads=threads)
        report = (tmp_path / f"{out.name}.report.json").read_text()
        outputs.append((out.read_bytes(), report))
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("part_bytes", [1_000, 30_000, 1 << 20])
def test_the_output_is_the_same_from_parts_of_the_text(
    corpus: Path, tmp_path: Path, part_bytes: int
) -> None:
    outputs = []
    for name, parts in (("here", {}), ("there", {"engine": map, "part_bytes": part_bytes})):
        out = tmp_path / f"{name}.jsonl"
        run(corpus, out, validation=[corpus / "b.jsonl"], settings={"script": "latin"}, **parts)
        outputs.append((out.read_bytes(), (tmp_path / f"{name}.jsonl.report.json").read_bytes()))
    assert outputs[0] == outputs[1]


def test_near_duplicates_can_be_kept(corpus: Path) -> None:
    summary = run(corpus, None, settings={"near_duplicates": 0.0})
    assert "near duplicates" not in summary.removed and summary.recall is None
    assert summary.removed["same"].num_documents == 2


def test_a_dry_run_counts_the_same_and_writes_nothing(corpus: Path, tmp_path: Path) -> None:
    wet, dry = run(corpus, tmp_path / "x.jsonl"), run(corpus, None)
    assert (wet.removed, wet.kept_bytes) == (dry.removed, dry.kept_bytes)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.jsonl", "x.jsonl.report.json"]


@pytest.mark.parametrize("bitmap_bits", [1, 24])
def test_validation_text_in_training_is_reported(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bitmap_bits: int
) -> None:
    monkeypatch.setattr(overlap, "_BITMAP_BITS", bitmap_bits)
    known = varied(300, seed=4)[0]
    half = " ".join(known.split()[:60] + [f"new{number}" for number in range(49)])
    fresh = " ".join(f"never{number}" for number in range(100))
    path = tmp_path / "validation.txt"
    path.write_text(END_OF_TEXT.join([fresh, known, half, "too short"]))
    report = run(corpus, None, validation=[path]).validation
    assert report is not None
    assert report["documents"] == 4 and report["documents_in_training"] == 1
    fractions = [example["fraction"] for example in report["examples"]]
    assert fractions[0] == 1.0 and fractions[1] == pytest.approx(48 / 97, abs=0.001)
    assert report["examples"][0]["text"] == known[:100]
    assert report["passages_in_training"] == 108 + 48


def test_an_error_on_the_way_leaves_no_output(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(LONG)
    (tmp_path / "b.txt").write_bytes(b"bad \xff")
    with pytest.raises(DataError, match=r"b\.txt, byte 4: not UTF-8"):
        clean([tmp_path / "a.txt", tmp_path / "b.txt"], tmp_path / "out" / "c.jsonl")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"near_duplicates": 1.5}, "near_duplicates"),
        ({"max_symbols": -1}, "max_symbols"),
        ({"min_characters": -1}, "min_characters"),
        ({"max_characters": 9}, "max_characters 9"),
        ({"script": "runes"}, "script"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    corpus: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        run(corpus, None, settings=settings)


def test_outputs_that_would_harm_are_refused(corpus: Path, tmp_path: Path) -> None:
    for name, message in (("x.txt", "is not the name of JSON lines"), ("", "is a folder")):
        with pytest.raises(ConfigError, match=message):
            run(corpus, tmp_path / name)
    with pytest.raises(ConfigError, match="is one of the inputs"):
        run(corpus, corpus / "b.jsonl", overwrite=True)
    (tmp_path / "there.jsonl").write_text("mine")
    with pytest.raises(ConfigError, match=r"there\.jsonl exists; .*--overwrite"):
        run(corpus, tmp_path / "there.jsonl")
    assert (tmp_path / "there.jsonl").read_text() == "mine"
    run(corpus, tmp_path / "there.jsonl", overwrite=True)
    assert (tmp_path / "there.jsonl").read_text() != "mine"


def test_a_name_that_is_not_utf8_is_in_the_report(tmp_path: Path) -> None:
    source = tmp_path / os.fsdecode(b"odd\xff.txt")
    source.write_text(LONG + END_OF_TEXT + LONG)
    clean([source], tmp_path / "out.jsonl", validation=[source])
    report = json.loads((tmp_path / "out.jsonl.report.json").read_text("utf-8"))
    examples = (report["removed"]["same"], report["validation"])
    names = [*report["sources"], *(one["examples"][0]["source"] for one in examples)]
    assert names == [f"{tmp_path}/odd\\xff.txt"] * 3


@pytest.mark.parametrize("text", ["x", "word " * 5_000, " \n "])
def test_text_of_which_nothing_is_left_is_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "poor.txt"
    path.write_text(text)
    with pytest.raises(DataError, match="no document is left of 1, 1 of them for '"):
        clean([path], tmp_path / "clean.jsonl")
    assert not (tmp_path / "clean.jsonl").exists()


def test_an_example_names_the_document_that_it_is_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "_GROUP_BYTES", 1)
    for name, text in (("a", LONG[::-1]), ("b", LONG), ("c", f"{LONG} End."), ("d", LONG)):
        (tmp_path / f"{name}.txt").write_text(text)
    removed = run(tmp_path, None).removed
    for reason, source in (("near duplicates", "c"), ("same", "d")):
        [example] = removed[reason].examples
        assert example["source"] == str(tmp_path / f"{source}.txt")
        assert example["like"] == {"source": str(tmp_path / "b.txt"), "document": 1}
