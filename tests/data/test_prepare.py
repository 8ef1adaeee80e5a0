"""Preparing shards: the same bytes for any threads and batches, whatever stops it on the way."""

import errno
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from groundup._native import hash_documents
from groundup.data.prepare import corpus_writer, prepare, shard_writer
from groundup.data.shards import open_shards, verify
from groundup.errors import ConfigError, DataError, GroundupError, TokenizerError
from groundup.tokenizer import Tokenizer

END = "<|endoftext|>"
SETTINGS: dict[str, Any] = {"shard_ids": 4000, "validation_fraction": 0.1}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def split_of(document: bytes, fraction: float) -> str:
    (hash_,) = np.frombuffer(hash_documents(document, np.array([[0, len(document)]])), np.uint64)
    return "validation" if int(hash_) < fraction * 2**64 else "train"


def expected_shards(
    documents: list[str], tokenizer: Tokenizer, fraction: float, shard_ids: int
) -> dict[str, list[list[int]]]:
    """The definition: documents in order, each to its split, a shard closed when it is full."""
    shards: dict[str, list[list[int]]] = {"train": [], "validation": []}
    for document in documents:
        split = shards[split_of(document.encode(), fraction)]
        if not split or len(split[-1]) >= shard_ids:
            split.append([])
        split[-1] += [*tokenizer.encode(document), tokenizer.special_tokens[END]]
    return shards


def read_shards(folder: Path) -> dict[str, list[list[int]]]:
    return {
        split: [
            np.fromfile(file.path, file.dtype).tolist() for file in open_shards(folder, split).files
        ]
        for split in ("train", "validation")
    }


def stop_after(calls: int) -> Callable[[int, int | None], None]:
    """A progress callback that ends the run as Ctrl-C does."""

    def progress(done: int, total: int | None) -> None:
        nonlocal calls
        calls -= 1
        if calls == 0:
            raise KeyboardInterrupt

    return progress


def test_shards_are_those_of_the_definition(
    corpus: list[Path], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    summary = prepare(corpus, tokenizer, tmp_path / "out", **SETTINGS)
    documents = [d for path in corpus for d in path.read_text("utf-8").split(END) if d]
    assert read_shards(tmp_path / "out") == expected_shards(documents, tokenizer, 0.1, 4000)
    index = summary.index
    assert sum(split.num_documents for split in index.splits.values()) == len(documents)
    num_bytes = sum(len(document.encode()) for document in documents)
    assert sum(split.num_bytes for split in index.splits.values()) == num_bytes
    assert [source.num_documents for source in index.sources] == [400, 400]
    assert summary.outcome == "written" and summary.num_bytes == num_bytes
    verify(tmp_path / "out", tokenizer)


@hypothesis.given(
    documents=st.lists(st.text(max_size=30), min_size=1, max_size=40),
    shard_ids=st.integers(1, 50),
    fraction=st.floats(0, 0.99),
    batch_bytes=st.integers(1, 200),
)
@hypothesis.settings(max_examples=60)
def test_any_documents_in_any_settings_are_those_of_the_definition(
    tokenizer: Tokenizer,
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[str],
    shard_ids: int,
    fraction: float,
    batch_bytes: int,
) -> None:
    documents = [document.replace(END, "") for document in documents]
    hypothesis.assume(any(documents))
    folder = tmp_path_factory.mktemp("any")
    path = folder / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents), "utf-8")
    prepare(
        [path],
        tokenizer,
        folder / "out",
        shard_ids=shard_ids,
        validation_fraction=fraction,
        batch_bytes=batch_bytes,
    )
    kept = [document for document in documents if document]
    wanted = expected_shards(kept, tokenizer, fraction, shard_ids)
    assert read_shards(folder / "out") == wanted
    verify(folder / "out", tokenizer)


@pytest.mark.parametrize(
    ("num_threads", "batch_bytes"), [(1, None), (2, None), (4, 1 << 16), (2, 3000), (4, 100)]
)
def test_output_does_not_depend_on_threads_or_batches(
    corpus: list[Path], tokenizer: Tokenizer, tmp_path: Path, num_threads: int, batch_bytes: int
) -> None:
    prepare(corpus, tokenizer, tmp_path / "a", num_threads=1, batch_bytes=1 << 20, **SETTINGS)
    prepare(
        corpus,
        tokenizer,
        tmp_path / "b",
        num_threads=num_threads,
        batch_bytes=batch_bytes,
        **SETTINGS,
    )
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_a_document_of_many_batches_gets_the_ids_of_the_whole(
    tokenizer: Tokenizer, tmp_path: Path, make_documents: Callable[..., list[str]]
) -> None:
    text = " ".join(make_documents(3000))
    path = tmp_path / "book.txt"
    path.write_text(f"short{END}{text}{END}short again", "utf-8")
    prepare([path], tokenizer, tmp_path / "out", batch_bytes=1000, **SETTINGS)
    wanted = expected_shards(["short", text, "short again"], tokenizer, 0.1, 4000)
    assert read_shards(tmp_path / "out") == wanted


def test_the_split_of_a_document_does_not_change_when_files_are_added(
    corpus: list[Path], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    prepare(corpus[1:], tokenizer, tmp_path / "one", validation_fraction=0.1)
    prepare(corpus, tokenizer, tmp_path / "two", validation_fraction=0.1)
    for split in ("train", "validation"):
        few = open_shards(tmp_path / "one", split)[:]
        many = open_shards(tmp_path / "two", split)[:]
        assert 0 < len(few) < len(many)
        assert np.array_equal(few, many[-len(few) :])


def test_compressed_sources_give_the_same_documents(
    corpus: list[Path], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    packed = tmp_path / "first.txt.gz"
    packed.write_bytes(gzip.compress(corpus[0].read_bytes()))
    plain = prepare(corpus[:1], tokenizer, tmp_path / "plain").index
    unpacked = prepare([packed], tokenizer, tmp_path / "unpacked").index
    assert plain.splits == unpacked.splits
    assert plain.sources[0].hash == unpacked.sources[0].hash


def test_large_vocabularies_take_four_bytes(tmp_path: Path) -> None:
    vocab = {id: bytes([id]) for id in range(256)} | {70_000: END.encode()}
    tokenizer = Tokenizer(vocab, [], [END])
    path = tmp_path / "text.txt"
    path.write_text("abc")
    prepare([path], tokenizer, tmp_path / "out", validation_fraction=0)
    assert (tmp_path / "out" / "train_000000.bin").read_bytes() == np.array(
        [97, 98, 99, 70_000], "<u4"
    ).tobytes()


def test_running_again_says_up_to_date_and_touches_nothing(
    corpus: list[Path], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    index = prepare(corpus, tokenizer, out, **SETTINGS).index
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    summary = prepare(corpus, tokenizer, out, **SETTINGS)
    assert summary.outcome == "up to date" and summary.index == index
    # A newer time alone is no change: the documents are compared.
    os.utime(corpus[0])
    assert prepare(corpus, tokenizer, out, **SETTINGS).outcome == "up to date"
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before


def change_text(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data.replace(b"fox", b"dog", 1))


def test_a_finished_folder_of_something_else_is_refused(
    corpus: list[Path], tokenizer: Tokenizer, other_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    prepare(corpus, tokenizer, out, **SETTINGS)
    before = contents(out)
    with pytest.raises(DataError, match=r"its tokenizer is sha256:.*--overwrite"):
        prepare(corpus, other_tokenizer, out, **SETTINGS)
    with pytest.raises(DataError, match="its shard_ids is 4000, not 5000"):
        prepare(corpus, tokenizer, out, **{**SETTINGS, "shard_ids": 5000})
    with pytest.raises(DataError, match=r"made from .*second\.txt as well"):
        prepare(corpus[:1], tokenizer, out, **SETTINGS)
    with pytest.raises(DataError, match="these sources in another order"):
        prepare(corpus[::-1], tokenizer, out, **SETTINGS)
    extra = tmp_path / "third.txt"
    extra.write_text("more")
    with pytest.raises(DataError, match=r"made without .*third\.txt"):
        prepare([*corpus, extra], tokenizer, out, **SETTINGS)
    change_text(corpus[1])
    with pytest.raises(DataError, match=r"second\.txt has changed since"):
        prepare(corpus, tokenizer, out, **SETTINGS)
    assert contents(out) == before
    assert prepare(corpus, tokenizer, out, overwrite=True, **SETTINGS).outcome == "written"
    assert contents(out) != before


def interrupted(
    inputs: list[Path], tokenizer: Tokenizer, out: Path, calls: int, **settings: Any
) -> None:
    with pytest.raises(KeyboardInterrupt):
        prepare(
            inputs,
            tokenizer,
            out,
            batch_bytes=2000,
            progress=stop_after(calls),
            **{**SETTINGS, **settings},
        )
    assert (out / "unfinished.json").exists() and not (out / "index.json").exists()


@pytest.mark.parametrize("calls", [1, 10, 30])
def test_an_interrupt_leaves_a_folder_that_goes_on(
    corpus: list[Path], tokenizer: Tokenizer, tmp_path: Path, calls: int
) -> None:
    prepare(corpus, tokenizer, tmp_path / "whole", **SETTINGS)
    out = tmp_path / "out"
    interrupted(corpus, tokenizer, out, calls)
    summary = prepare(corpus, tokenizer, out, **SETTINGS)
    assert summary.outcome == "resumed"
    assert summary.num_bytes < sum(entry.num_bytes for entry in summary.index.sources)
    assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.parametrize("split", ["train", "validation"])
def test_an_interrupt_between_the_two_names_of_a_last_shard_goes_on(
    corpus: list[Path],
    tokenizer: Tokenizer,
    tmp_path: Path,
    split: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepare(corpus, tokenizer, tmp_path / "whole", **SETTINGS)
    out, replace, is_finishing = tmp_path / "out", os.replace, []

    def replace_and_interrupt(source: Any, destination: Any) -> None:
        replace(source, destination)
        if is_finishing and Path(destination).name.startswith(f"{split}_"):
            raise KeyboardInterrupt

    finish = corpus_writer.CorpusWriter.finish

    def note_and_finish(self: corpus_writer.CorpusWriter) -> Any:
        is_finishing.append(True)
        return finish(self)

    with monkeypatch.context() as patch:
        patch.setattr(corpus_writer.CorpusWriter, "finish", note_and_finish)
        patch.setattr(os, "replace", replace_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare(corpus, tokenizer, out, **SETTINGS)
    prepare(corpus, tokenizer, out, **SETTINGS)
    assert contents(out) == contents(tmp_path / "whole")


def test_a_resume_with_anything_else_is_refused(
    corpus: list[Path], tokenizer: Tokenizer, other_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    interrupted(corpus, tokenizer, out, 10)
    before = contents(out)
    with pytest.raises(DataError, match=r"tokenizer is sha256:.*start over with --overwrite"):
        prepare(corpus, other_tokenizer, out, **SETTINGS)
    with pytest.raises(DataError, match=r"validation_fraction is 0\.1, not 0\.2"):
        prepare(corpus, tokenizer, out, **{**SETTINGS, "validation_fraction": 0.2})
    with pytest.raises(DataError, match="its field is text, not body"):
        prepare(corpus, tokenizer, out, field="body", **SETTINGS)
    assert contents(out) == before
    change_text(corpus[0])
    with pytest.raises(DataError, match=r"first\.txt has changed since part of it was encoded"):
        prepare(corpus, tokenizer, out, **SETTINGS)
    with pytest.raises(DataError, match=r"second\.txt has changed since part of it was encoded"):
        prepare(corpus[::-1], tokenizer, out, **SETTINGS)
    prepare(corpus, tokenizer, out, overwrite=True, **SETTINGS)
    prepare(corpus, tokenizer, tmp_path / "whole", **SETTINGS)
    assert contents(out) == contents(tmp_path / "whole")


def test_a_finished_source_may_be_touched_but_not_changed(
    corpus: list[Path], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    small = tmp_path / "small.txt"
    small.write_text("a fox")
    out = tmp_path / "out"
    interrupted([small, *corpus], tokenizer, out, 10)
    os.utime(small)
    with pytest.raises(DataError, match=r"made from .*small\.txt where .*first\.txt is given"):
        prepare(corpus, tokenizer, out, **SETTINGS)
    small.write_text("a dog")
    with pytest.raises(DataError, match=r"small\.txt has changed since"):
        prepare([small, *corpus], tokenizer, out, **SETTINGS)
    small.write_text("a fox")
    assert prepare([small, *corpus], tokenizer, out, **SETTINGS).outcome == "resumed"


def test_sources_not_yet_read_may_still_change(
    corpus: list[Path], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    interrupted(corpus, tokenizer, out, 5)
    change_text(corpus[1])
    prepare(corpus, tokenizer, out, **SETTINGS)
    prepare(corpus, tokenizer, tmp_path / "whole", **SETTINGS)
    assert contents(out) == contents(tmp_path / "whole")


def test_finished_shards_are_verified_before_going_on(
    corpus: list[Path], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    interrupted(corpus, tokenizer, out, 30, shard_ids=500)
    shard = out / "train_000000.bin"
    shard.write_bytes(shard.read_bytes()[::-1])
    with pytest.raises(DataError, match=r"train_000000\.bin is damaged"):
        prepare(corpus, tokenizer, out, **{**SETTINGS, "shard_ids": 500})


def test_an_unfinished_shard_that_is_gone_is_named(
    corpus: list[Path], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    interrupted(corpus, tokenizer, out, 10)
    for partial in out.glob("*.partial"):
        partial.unlink()
    with pytest.raises(DataError, match=r"\.partial is missing or shorter"):
        prepare(corpus, tokenizer, out, **SETTINGS)


def test_invalid_text_stops_and_can_go_on_with_replacement(
    corpus: list[Path], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    bad = tmp_path / "third.txt"
    bad.write_bytes(b"fine" + END.encode() + b"bad \xff text")
    out = tmp_path / "out"
    with pytest.raises(DataError, match=r"third\.txt, byte 21: not UTF-8.*--errors replace"):
        prepare([*corpus, bad], tokenizer, out, **SETTINGS)
    assert not (out / "index.json").exists()
    for errors in ("replace", "skip"):
        whole = tmp_path / errors
        prepare([*corpus, bad], tokenizer, whole, errors=errors, **SETTINGS)
    summary = prepare([*corpus, bad], tokenizer, out, errors="replace", **SETTINGS)
    assert summary.outcome == "resumed"
    assert contents(out) == contents(tmp_path / "replace") != contents(tmp_path / "skip")


def test_a_full_disk_leaves_a_folder_that_goes_on(
    corpus: list[Path], tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(corpus, tokenizer, tmp_path / "whole", **SETTINGS)
    out = tmp_path / "out"
    room = 20_000
    write = os.write

    def write_until_full(file: int, data: memoryview) -> int:
        nonlocal room
        if room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = write(file, data[: max(1, min(room, len(data) // 2))])
        room -= min(room, count)
        return count

    with monkeypatch.context() as patch:
        patch.setattr(shard_writer.os, "write", write_until_full)
        with pytest.raises(OSError, match="No space left") as caught:
            prepare(corpus, tokenizer, out, **SETTINGS)
    assert caught.value.errno == errno.ENOSPC and str(out) in str(caught.value.filename)
    assert not (out / "index.json").exists()
    assert prepare(corpus, tokenizer, out, **SETTINGS).index is not None
    assert contents(out) == contents(tmp_path / "whole")


KILLS = """
import os, random, signal, sys
from pathlib import Path
from groundup.data.prepare import corpus_writer
from groundup.data.prepare import prepare
from groundup.tokenizer import Tokenizer

tokenizer, out, *inputs = sys.argv[1:]
tokenizer = Tokenizer.load(tokenizer)
corpus_writer._JOURNAL_SECONDS = 0.001
corpus_writer._JOURNAL_FRACTION = 1e9

def run(folder, batch_bytes, lives):
    "In a child that kills itself at some moment of its dealings with the disk."
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for name in ("write", "fsync", "replace", "ftruncate", "open", "unlink"):
        def mortal(*arguments, _call=getattr(os, name), **options):
            nonlocal lives
            lives -= 1
            if lives == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            result = _call(*arguments, **options)
            if lives == 1 and random.random() < 0.5:
                os.kill(os.getpid(), signal.SIGKILL)
            return result
        setattr(os, name, mortal)
    prepare(inputs, tokenizer, folder, shard_ids=2500, validation_fraction=0.1,
            num_threads=random.choice([1, 2]), batch_bytes=batch_bytes)
    os._exit(0)

for seed in range(6):
    random.seed(seed)
    folder = Path(out) / str(seed)
    kills = 0
    while (status := run(folder, random.choice([1000, 20_000, 1 << 20]), random.randrange(1, 90))):
        assert status == -signal.SIGKILL, status
        kills += 1
    print(kills)
"""


def test_kills_at_random_moments_leave_no_trace(
    corpus: list[Path], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    settings = {"shard_ids": 2500, "validation_fraction": 0.1}
    small = tmp_path / "small"
    small.mkdir()
    for number in range(20):
        (small / f"{number}.txt").write_text(f"the fox {number} ran home{END}its kite")
    prepare([*corpus, small], tokenizer, tmp_path / "whole", **settings)
    words = [tmp_path / "tokenizer.json", tmp_path / "killed", *corpus, small]
    done = subprocess.run(
        [sys.executable, "-c", KILLS, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert sum(map(int, done.stdout.split())) > 10
    whole = contents(tmp_path / "whole")
    for folder in (tmp_path / "killed").iterdir():
        assert contents(folder) == whole


def test_a_second_process_is_refused(
    corpus: list[Path], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    refusals = []

    def progress(done: int, total: int | None) -> None:
        with pytest.raises(DataError, match="another process is writing"):
            prepare(corpus, tokenizer, out, **SETTINGS)
        refusals.append(done)

    prepare(corpus, tokenizer, out, progress=progress, **SETTINGS)
    assert refusals


def test_foreign_shard_files_are_not_overwritten(
    corpus: list[Path], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "train_000000.bin").write_bytes(b"precious")
    (out / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match=r"train_000000\.bin but no index\.json"):
        prepare(corpus, tokenizer, out)
    assert (out / "train_000000.bin").read_bytes() == b"precious"
    prepare(corpus, tokenizer, out, overwrite=True)
    assert (out / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"validation_fraction": 1.0}, ConfigError, "validation_fraction is 1; .* less than 1"),
        ({"validation_fraction": -0.1}, ConfigError, "at least 0"),
        ({"validation_fraction": float("nan")}, ConfigError, "nan"),
        ({"shard_ids": 0}, ConfigError, "shard_ids is 0"),
        ({"num_threads": 0}, ConfigError, "num_threads is 0"),
        ({"separator": "<|end|>"}, TokenizerError, r"no special token <\|end\|>.*endoftext"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_anything_is_written(
    corpus: list[Path],
    tokenizer: Tokenizer,
    tmp_path: Path,
    settings: dict[str, Any],
    error: type[GroundupError],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        prepare(corpus, tokenizer, tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


def test_a_missing_source_is_refused_before_anything_is_written(
    corpus: list[Path], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=r"nowhere\.txt does not exist"):
        prepare([*corpus, tmp_path / "nowhere.txt"], tokenizer, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_sources_without_documents_are_an_error(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "empty.txt"
    path.write_text(END * 3)
    with pytest.raises(DataError, match="no documents"):
        prepare([path], tokenizer, tmp_path / "out")
    assert not (tmp_path / "out" / "index.json").exists()


def test_a_source_that_changes_while_it_is_read_is_refused(
    corpus: list[Path], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    def progress(done: int, total: int | None) -> None:
        os.utime(corpus[1], ns=(done, done))

    with pytest.raises(DataError, match=r"second\.txt changed while it was being read"):
        prepare(
            corpus, tokenizer, tmp_path / "out", batch_bytes=1000, progress=progress, **SETTINGS
        )


def test_progress_reaches_the_end_and_never_goes_back(
    corpus: list[Path], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    calls: list[tuple[int, int | None]] = []
    prepare(
        corpus,
        tokenizer,
        tmp_path / "out",
        batch_bytes=2000,
        progress=lambda done, total: calls.append((done, total)),
    )
    total = sum(path.stat().st_size for path in corpus)
    assert calls == sorted(calls) and calls[-1] == (total, total)


def test_small_files_are_encoded_together_as_one_by_one(
    tokenizer: Tokenizer, make_documents: Callable[..., list[str]], tmp_path: Path
) -> None:
    documents = make_documents(300, seed=5)
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(100):
        text = END.join(documents[3 * number : 3 * number + 3])
        (folder / f"{number:03}.txt").write_text(text, "utf-8")
    # Among them one that needs care: not alone in its batch, but read on its own.
    (folder / "050.txt.gz").write_bytes(gzip.compress((folder / "050.txt").read_bytes()))
    (folder / "050.txt").unlink()
    prepare([folder], tokenizer, tmp_path / "out", **SETTINGS)
    assert read_shards(tmp_path / "out") == expected_shards(documents, tokenizer, 0.1, 4000)
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    assert [source["num_documents"] for source in index["sources"]] == [3] * 100
    for stops in (1, 3, 10):
        with pytest.raises(KeyboardInterrupt):
            options: dict[str, Any] = {"batch_bytes": 2000, "progress": stop_after(stops)}
            prepare([folder], tokenizer, tmp_path / "parted", **SETTINGS, **options)
    assert prepare([folder], tokenizer, tmp_path / "parted", **SETTINGS).outcome == "resumed"
    assert contents(tmp_path / "parted") == contents(tmp_path / "out")


def test_unreadable_files_are_skipped_by_wish_and_noted(
    corpus: list[Path], tokenizer: Tokenizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = tmp_path / "middle.txt.gz"
    damaged.write_bytes(b"not packed")
    inputs = [corpus[0], damaged, corpus[1]]
    with pytest.raises(DataError, match=r"middle\.txt\.gz is damaged"):
        prepare(inputs, tokenizer, tmp_path / "out", **SETTINGS)
    skip: dict[str, Any] = {**SETTINGS, "on_error": "skip"}
    index = prepare(inputs, tokenizer, tmp_path / "out", **skip).index
    assert "skipped 1 inputs that cannot be read" in caplog.text
    assert [entry.num_documents for entry in index.sources] == [400, 0, 400]
    assert [entry.unreadable is None for entry in index.sources] == [True, False, True]
    prepare(corpus, tokenizer, tmp_path / "whole", **SETTINGS)
    assert read_shards(tmp_path / "out") == read_shards(tmp_path / "whole")
    assert '"unreadable"' not in (tmp_path / "whole" / "index.json").read_text()
    assert prepare(inputs, tokenizer, tmp_path / "out", **skip).outcome == "up to date"
    with pytest.raises(DataError, match=r"middle\.txt\.gz was skipped as unreadable"):
        prepare(inputs, tokenizer, tmp_path / "out", **SETTINGS)


SHRINKING_SCRIPT = """
import os, sys
from groundup.data.prepare import prepare
from groundup.errors import DataError
from groundup.tokenizer import Tokenizer
path, tokenizer, out = sys.argv[1:]
try:
    shrink = lambda done, total: os.truncate(path, 1000)
    prepare([path], Tokenizer.load(tokenizer), out, batch_bytes=10_000, progress=shrink)
except DataError as error:
    sys.exit(str(error))
"""


def test_a_source_that_shrinks_is_one_line(
    corpus: list[Path], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """In a real process, which a bus error would end."""
    tokenizer.save(tmp_path / "tokenizer.json")
    corpus[0].write_bytes((corpus[0].read_bytes() + END.encode()) * 10)
    paths = [corpus[0], tmp_path / "tokenizer.json", tmp_path / "out"]
    command = [sys.executable, "-c", SHRINKING_SCRIPT, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"{corpus[0]} became shorter while it was being read")


def test_a_named_pipe_is_a_source_that_cannot_be_read_again(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    pipe, out = tmp_path / "pipe.txt", tmp_path / "out"
    os.mkfifo(pipe)
    with subprocess.Popen(["sh", "-c", f"printf 'one<|endoftext|>two' > {pipe}"]):
        index = prepare([pipe], tokenizer, out, validation_fraction=0).index
    assert [(entry.size, entry.num_documents) for entry in index.sources] == [(None, 2)]
    with pytest.raises(DataError, match=rf"{pipe} has changed since, or cannot be read again"):
        prepare([pipe], tokenizer, out, validation_fraction=0)


def test_a_document_of_one_pre_token_is_encoded_in_parts(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    text = "a" * 5_000_000 + " b"
    path = tmp_path / "letters.txt.gz"
    path.write_bytes(gzip.compress(text.encode()))
    prepare([path], tokenizer, tmp_path / "out", validation_fraction=0, batch_bytes=1 << 18)
    ids = np.fromfile(next((tmp_path / "out").glob("train_*.bin")), tokenizer.id_type)
    assert ids[:-1].tolist() == tokenizer.encode(text)


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_memory_does_not_follow_the_length_of_a_pre_token(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    path = tmp_path / "zeros.txt.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(32):
            file.write(bytes(1 << 20))
    script = """
import sys
from groundup.data.prepare import prepare
from groundup.runtime import peak_memory_bytes
from groundup.tokenizer import Tokenizer
folder = sys.argv[1]
tokenizer = Tokenizer.load(f"{folder}/tokenizer.json")
before = peak_memory_bytes()
prepare([f"{folder}/zeros.txt.gz"], tokenizer, f"{folder}/out", batch_bytes=1 << 20)
print(peak_memory_bytes() - before)
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stderr == ""
    assert int(done.stdout) < 128 << 20
