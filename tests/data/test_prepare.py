"""Preparing shards: the same bytes for any threads and batches, and after interruptions.

tests/torture covers crashes and power failures.
"""

import gzip
import importlib
import json
import os
import subprocess
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from groundup._native import hash_documents
from groundup.data.prepare import PrepareSummary, encoding, prepare
from groundup.data.shards import open_shards, verify
from groundup.errors import DataError, TokenizerError
from groundup.text_files import read
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.native import as_array

END = "<|endoftext|>"
prepare_module = importlib.import_module("groundup.data.prepare.prepare")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@dataclass
class Work:
    """A corpus of two files, and the output folder."""

    corpus: list[Path]
    tokenizer: Tokenizer
    path: Path

    @property
    def out(self) -> Path:
        return self.path / "out"

    def prepare(
        self, inputs: list[Path] | None = None, out: str = "out", **settings: Any
    ) -> PrepareSummary:
        settings = {"shard_bytes": 20_000, "validation_fraction": 0.1, **settings}
        inputs = self.corpus if inputs is None else inputs
        tokenizer = settings.pop("tokenizer", self.tokenizer)
        return prepare(inputs, tokenizer, self.path / out, **settings)

    def undisturbed(self) -> dict[str, bytes]:
        """Return the files that an uninterrupted run writes."""
        self.prepare(out="undisturbed", overwrite=True)
        return contents(self.path / "undisturbed")

    def interrupt(self, calls: int) -> None:
        """Prepare, with an error in one of the calls of the progress callback."""
        outcomes = iter([None] * (calls - 1))
        with pytest.raises(StopIteration):
            self.prepare(batch_bytes=2000, progress=lambda *_: next(outcomes))
        assert not (self.out / "index.json").exists()

    def refuse(self, message: str, inputs: list[Path] | None = None, **settings: Any) -> None:
        with pytest.raises(DataError, match=message):
            self.prepare(inputs, **settings)

    def file(self, name: str, data: str | bytes) -> Path:
        path = self.path / name
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return path


@pytest.fixture
def work(corpus: list[Path], tokenizer: Tokenizer, tmp_path: Path) -> Work:
    return Work(corpus, tokenizer, tmp_path)


def split_of(document: bytes, fraction: float) -> str:
    (hash_,) = as_array(hash_documents(document, np.array([[0, len(document)]])), np.uint64)
    return "validation" if int(hash_) < fraction * 2**64 else "train"


def expected_ids(
    documents: list[str], tokenizer: Tokenizer, fraction: float = 0.1
) -> dict[str, list[int]]:
    """The definition: documents in order, each in its split."""
    splits: dict[str, list[int]] = {"train": [], "validation": []}
    for document in documents:
        ids = [*tokenizer.encode(document), tokenizer.special_tokens[END]]
        splits[split_of(document.encode(), fraction)] += ids
    return splits


def read_ids(folder: Path) -> dict[str, list[int]]:
    return {split: open_shards(folder, split)[:].tolist() for split in ("train", "validation")}


def change_text(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"fox", b"dog", 1))


# What is written


@hypothesis.given(
    documents=st.lists(st.text(max_size=30), min_size=1, max_size=30),
    shard_bytes=st.integers(20, 300),
    fraction=st.just(0.0) | st.floats(0.1, 0.99),
    batch_bytes=st.integers(1, 200),
)
def test_shards_match_the_definition(
    tokenizer: Tokenizer,
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[str],
    shard_bytes: int,
    fraction: float,
    batch_bytes: int,
) -> None:
    documents = [document.replace(END, "") for document in documents]
    kept = [document for document in documents if document]
    expected = expected_ids(kept, tokenizer, fraction)
    # If no document is selected for validation, the tail is: tested below.
    hypothesis.assume(kept and (expected["validation"] or not int(fraction * 2**64)))
    work = Work([], tokenizer, tmp_path_factory.mktemp("any"))
    half = len(documents) // 2
    lines = "".join(json.dumps({"text": text}) + "\n" for text in documents[:half])
    plain = END.join(["", *documents[half:]])
    summary = work.prepare(
        [work.file("documents.jsonl", lines), work.file("documents.txt", plain)],
        shard_bytes=shard_bytes,
        validation_fraction=fraction,
        batch_bytes=batch_bytes,
    )
    assert read_ids(work.out) == expected
    splits, sources = summary.index.splits.values(), summary.index.sources
    num_bytes = sum(len(document.encode()) for document in kept)
    assert summary.outcome == "written" and summary.num_bytes == num_bytes
    for entries in (splits, sources):
        assert sum(entry.num_documents for entry in entries) == len(kept)
        assert sum(entry.num_bytes for entry in entries) == num_bytes
    verify(work.out, tokenizer)


def test_output_does_not_depend_on_threads_batches_or_parts(work: Work) -> None:
    lines = "".join(json.dumps({"text": f"line {n}, of many"}) + "\n" for n in range(300))
    inputs = [*work.corpus, work.file("lines.jsonl", lines)]
    # Documents longer than a few batches are split over several items.
    inputs.append(work.file("long.txt", ("the fox saw rain. " * 5000 + END) * 2 + "end"))
    inputs.append(work.file("packed.txt.gz", gzip.compress(b"a packed text")))
    inputs += [work.file(f"small{n}.txt", f"small file {n}") for n in range(9)]
    work.prepare(inputs)
    whole = contents(work.out)
    ways: list[dict[str, Any]] = [
        *(
            {"num_threads": n, "batch_bytes": size}
            for n, size in ((1, 1 << 20), (2, 3000), (4, 99))
        ),
        *({"engine": map, "part_bytes": size, "batch_bytes": size} for size in (5_000, 50_000)),
        {"engine": map, "part_bytes": 1 << 20},
    ]
    for way in ways:
        work.prepare(inputs, overwrite=True, **way)
        assert contents(work.out) == whole, way


def test_large_vocabularies_use_uint32(work: Work) -> None:
    vocab = {id: bytes([id]) for id in range(256)} | {70_000: END.encode()}
    path = work.file("text.txt", "abc")
    work.prepare([path], tokenizer=Tokenizer(vocab, [], [END]), validation_fraction=0)
    ids = np.array([97, 98, 99, 70_000], "<u4")
    assert (work.out / "train_000000.bin").read_bytes() == ids.tobytes()


# A finished folder


def test_a_second_run_is_up_to_date_and_changes_nothing(work: Work) -> None:
    index = work.prepare().index
    before = {path: path.stat().st_mtime_ns for path in work.out.iterdir()}
    summary = work.prepare()
    assert summary.outcome == "up to date" and summary.index == index
    assert {path: path.stat().st_mtime_ns for path in work.out.iterdir()} == before
    # Without decoding errors, another value of `errors` makes no difference; not vice versa.
    assert work.prepare(errors="skip").outcome == "up to date"
    work.prepare(out="lenient", errors="skip")
    with pytest.raises(DataError, match="its errors is skip, not strict"):
        work.prepare(out="lenient", errors="strict")


def test_a_finished_folder_with_other_settings_is_rejected(
    work: Work, other_tokenizer: Tokenizer
) -> None:
    work.prepare()
    before = contents(work.out)
    work.refuse(r"its tokenizer is sha256:.*--overwrite", tokenizer=other_tokenizer)
    work.refuse("its shard_bytes is 20000, not 5000", shard_bytes=5000)
    work.refuse(r"second\.txt has changed since", work.corpus[:1])
    work.refuse("order of its sources", work.corpus[::-1])
    work.refuse(r"third\.txt has changed", [*work.corpus, work.file("third.txt", "more")])
    change_text(work.corpus[1])
    work.refuse(r"second\.txt has changed since")
    assert contents(work.out) == before
    assert work.prepare(overwrite=True).outcome == "written"
    assert contents(work.out) != before


def test_a_foreign_index_is_not_overwritten(work: Work) -> None:
    work.out.mkdir()
    work.file("out/index.json", '{"name": "mine"}')
    work.refuse(r"index\.json is not an index of shards; choose another folder", overwrite=True)
    assert contents(work.out)["index.json"] == b'{"name": "mine"}'


def test_a_second_process_is_rejected_and_progress_is_monotonic(work: Work) -> None:
    calls: list[tuple[int, int | None]] = []

    def progress(done: int, total: int | None) -> None:
        work.refuse("another process is writing")
        calls.append((done, total))

    work.prepare(batch_bytes=9000, progress=progress)
    total = sum(path.stat().st_size for path in work.corpus)
    assert calls == sorted(calls) and calls[-1] == (total, total)


# An unfinished folder


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("calls", [1, 10, 30])
def test_interrupted_runs_resume(work: Work, calls: int, parts: bool) -> None:
    work.interrupt(calls)
    settings: dict[str, Any] = {"engine": map, "part_bytes": 3_000} if parts else {}
    num_kept = len(list(work.out.glob("shard_*.json")))
    summary = work.prepare(**settings)
    assert summary.outcome == ("resumed" if num_kept else "written")
    num_bytes = sum(entry.num_bytes for entry in summary.index.sources)
    assert (summary.num_bytes < num_bytes) == bool(num_kept)
    assert contents(work.out) == work.undisturbed()


@pytest.mark.parametrize("num_documents", [1, 3])
def test_with_few_documents_the_tail_is_validation(work: Work, num_documents: int) -> None:
    text = work.corpus[0].read_text("utf-8").replace(END, "\n")[:6_000]
    parts = [text[i * 6_000 // num_documents :][: 6_000 // num_documents] for i in range(3)]
    file = work.file("few.txt", END.join(parts[:num_documents]))
    # A single document, split over several shards.
    settings: Any = {"validation_fraction": 0.0001, "shard_bytes": 1000}
    whole = work.prepare([file], "whole", validation_fraction=0)
    assert open_shards(whole.folder, "train").num_tokens == whole.index.splits["train"].num_tokens
    summary = work.prepare([file], **settings)
    assert work.prepare([file], **settings).outcome == "up to date"
    verify(work.out, work.tokenizer)
    ids = open_shards(whole.folder, "train").read(0, whole.index.splits["train"].num_tokens)
    train, validation = (open_shards(work.out, split) for split in ("train", "validation"))
    # A tenth of a small text; the rest ends with an end token.
    assert validation.num_tokens == len(ids) // 10
    head = train.read(0, train.num_tokens)
    assert head[-1] == work.tokenizer.special_tokens[END]
    joined = np.concatenate([head[:-1], validation.read(0, validation.num_tokens)])
    assert joined.tolist() == ids.tolist()
    splits = summary.index.splits.values()
    assert summary.index.splits["train"].num_documents == np.count_nonzero(head == head[-1])
    assert sum(split.num_bytes for split in splits) == whole.index.splits["train"].num_bytes


def test_shards_that_no_longer_match_are_rewritten(work: Work, other_tokenizer: Tokenizer) -> None:
    whole = work.undisturbed()
    work.interrupt(30)
    assert work.prepare(tokenizer=other_tokenizer).outcome == "written"
    for change in ("damage", "source"):
        work.prepare(overwrite=True)
        (work.out / "index.json").unlink()
        work.interrupt(30)
        kept = sorted(work.out.glob("shard_*.json"))
        assert len(kept) > 1
        if change == "damage":
            shard = work.out / "train_000001.bin"
            shard.write_bytes(shard.read_bytes()[::-1])
            assert work.prepare().outcome == "resumed"
            assert contents(work.out) == whole
        else:
            change_text(work.corpus[0])
            assert work.prepare().outcome == "written"
            assert contents(work.out) == work.undisturbed()


def test_a_long_document_goes_to_one_split_in_pieces(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "the fox saw rain. " * 5000
    documents = [text, text[:-1], "end"]
    file = work.file("long.txt", END.join(documents))
    work.prepare([file], "whole", validation_fraction=0.5)
    monkeypatch.setattr(encoding, "read", partial(read, piece_bytes=10_000))
    index = work.prepare([file], validation_fraction=0.5).index
    assert sum(split.num_documents for split in index.splits.values()) == 3
    index = work.prepare([work.file("none.txt", ""), file], "one", shard_bytes=1 << 20).index
    assert [source.num_documents for source in index.sources] == [0, 3]
    for name in ("whole", "out"):
        num_tokens = sum(map(len, read_ids(work.path / name).values()))
        assert num_tokens == sum(len(work.tokenizer.encode(one)) + 1 for one in documents)
    verify(work.out, work.tokenizer)


def test_too_long_pretokens_raise(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "read", partial(read, piece_bytes=10_000))
    work.refuse("a pre-token has more than", [work.file("letters.txt", "a" * 50_000)])


# Mistakes and sources that fail


def test_a_source_may_be_empty_but_not_all(work: Work) -> None:
    with pytest.raises(TokenizerError, match=r"no special token <\|end\|>.*endoftext"):
        work.prepare(separator="<|end|>")
    assert not work.out.exists()
    blank, empty = work.file("blank.jsonl", "\n\n"), work.file("empty.txt", END * 3)
    work.refuse("has no text", [blank, empty])
    assert not (work.out / "index.json").exists()
    index = work.prepare([blank, *work.corpus], "beside").index
    assert [source.num_documents for source in index.sources] == [0, 400, 400]
    assert work.prepare([blank, *work.corpus], "beside").outcome == "up to date"


def test_shards_of_plain_folders_never_change(work: Work) -> None:
    folder = work.path / "folder"
    (folder / "deep").mkdir(parents=True)
    for n in range(30):
        (folder / f"{n}.md").write_text(f"# Note {n}\n\nA fox, naïve 日本 {n}.\n" * (n + 1))
    stories = END.join(f"Story {n} é\n" for n in range(500))
    (folder / "deep" / "a.txt").write_text(stories, encoding="utf-8-sig")
    lines = (f'{{"text": "line {n} \\u00e9"}}\n' for n in range(50))
    (folder / "deep" / "b.jsonl").write_text("".join(lines))
    (folder / "code.py").write_text("def f(x):\n    return x\n" * 9)
    bytes_alone = Tokenizer({id: bytes([id]) for id in range(256)}, [], [END])
    index = work.prepare([folder], tokenizer=bytes_alone, shard_bytes=1 << 30).index
    assert [(shard.num_tokens, shard.hash) for shard in index.shards] == [
        (22527, "tree64:71f1ffac73713f6fb89f32bcd0e17c20e1243e6037f2e6fb0d9b85fbad781a51"),
        (1771, "tree64:071b503636f5e00c7de5744f928bc71ca3696d88d65487ba08e62200a7adeb12"),
    ]


def test_unreadable_files_are_skipped_on_request_and_noted(
    work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    inputs = [work.corpus[0], work.file("middle.txt.gz", b"not packed"), work.corpus[1]]
    work.refuse(r"middle\.txt\.gz cannot be read", inputs)
    index = work.prepare(inputs, errors="skip").index
    assert "middle.txt.gz: cannot be read" in caplog.text
    assert [entry.num_documents for entry in index.sources] == [400, 0, 400]
    assert [entry.unreadable is None for entry in index.sources] == [True, False, True]
    work.undisturbed()
    assert read_ids(work.out) == read_ids(work.path / "undisturbed")
    assert work.prepare(inputs, errors="skip").outcome == "up to date"


def test_a_named_pipe_cannot_be_reread(work: Work) -> None:
    pipe = work.path / "pipe.txt"
    work.out.mkdir()
    os.mkfifo(work.out / "shard_000000.json")
    os.mkfifo(pipe)
    with subprocess.Popen(["sh", "-c", f"printf 'one<|endoftext|>two' > {pipe}"]):
        index = work.prepare([pipe]).index
    assert [(entry.size, entry.num_documents) for entry in index.sources] == [(None, 2)]
    work.refuse(rf"{pipe} has changed since, or cannot be re-read", [pipe])
