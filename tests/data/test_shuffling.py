"""Documents in random order and texts mixed: nothing lost, and the seed alone decides."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from groundup.data.prepare import PrepareSummary, prepare, shuffling
from groundup.data.shards import open_shards, verify
from groundup.errors import ConfigError, DataError
from groundup.text_files import END_OF_TEXT
from groundup.tokenizer import Tokenizer

TOKENIZER = Tokenizer({i: bytes([i]) for i in range(256)}, [], [END_OF_TEXT])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "a.txt").write_text(END_OF_TEXT.join(f"tale {n} " * 3 for n in range(400)))
    lines = (json.dumps({"text": f"line {n} of many" * (1 + n % 7)}) for n in range(300))
    (folder / "b.jsonl").write_text("\n".join(lines))
    for number in range(40):
        (folder / f"c{number:02}.txt").write_text(f"small file {number}")
    (folder / "d.txt").write_text("long " * 9_000)
    return folder


def documents(folder: Path, split: str = "train") -> list[str]:
    text = TOKENIZER.decode(open_shards(folder, split)[:].tolist())
    return text.split(END_OF_TEXT)[:-1]


def make(inputs: Path | str, out: Path, **options: Any) -> PrepareSummary:
    summary = prepare([inputs], TOKENIZER, out, validation_fraction=0.1, **options)
    verify(out, TOKENIZER)
    # Files without names hold the text meanwhile.
    assert {path.suffix for path in out.iterdir()} == {".bin", ".json"}
    return summary


def test_shuffling_changes_the_order_and_nothing_else(corpus: Path, tmp_path: Path) -> None:
    plain = make(corpus, tmp_path / "plain").index
    mixed = make(corpus, tmp_path / "mixed", shuffle_documents=1).index
    assert mixed.sources == plain.sources
    for split in ("train", "validation"):
        before, after = (documents(tmp_path / name, split) for name in ("plain", "mixed"))
        assert sorted(before) == sorted(after) and before != after
    # Neighbours are neighbours no more.
    places = {text: place for place, text in enumerate(documents(tmp_path / "plain"))}
    order = np.array([places[text] for text in documents(tmp_path / "mixed")])
    assert abs(np.corrcoef(order, np.arange(len(order)))[0, 1]) < 0.12
    assert np.mean(np.abs(np.diff(order)) == 1) < 0.02


def test_the_seed_alone_decides(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(corpus, tmp_path / "one", shuffle_documents=1)
    make(corpus, tmp_path / "batches", shuffle_documents=1, batch_bytes=500, num_threads=3)
    monkeypatch.setattr(shuffling, "_BUCKET_BYTES", 1000)
    make(corpus, tmp_path / "buckets", shuffle_documents=1)
    make(corpus, tmp_path / "other", shuffle_documents=2)
    one = documents(tmp_path / "one")
    assert documents(tmp_path / "batches") == documents(tmp_path / "buckets") == one
    assert documents(tmp_path / "other") != one


def test_a_killed_shuffle_begins_again_and_ends_the_same(corpus: Path, tmp_path: Path) -> None:
    class KilledError(Exception):
        pass

    def kill(done: int, total: int | None) -> None:
        raise KilledError

    make(corpus, tmp_path / "whole", shuffle_documents=1)
    with pytest.raises(KilledError):
        make(corpus, tmp_path / "out", shuffle_documents=1, batch_bytes=2000, progress=kill)
    assert not (tmp_path / "out" / "index.json").exists()
    with pytest.raises(DataError, match="its shuffle_documents is 1, not 2"):
        make(corpus, tmp_path / "out", shuffle_documents=2)
    make(corpus, tmp_path / "out", shuffle_documents=1)
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (tmp_path / "out" / path.name).read_bytes()
    assert make(corpus, tmp_path / "out", shuffle_documents=1).outcome == "up to date"
    with pytest.raises(DataError, match="its shuffle_documents is 1, not None"):
        make(corpus, tmp_path / "out")


def mix(corpus: Path, out: Path, **options: Any) -> PrepareSummary:
    weights = {str(corpus / "a.txt"): 0.5, str(corpus / "b.jsonl"): 0.5}
    return prepare([], TOKENIZER, out, mix=weights, **options)


def test_a_mix_has_its_ratio_by_bytes_and_all_of_the_scarce_text(
    corpus: Path, tmp_path: Path
) -> None:
    summary = mix(corpus, tmp_path / "mix")
    assert summary.mix is not None
    (tales, fraction), (lines, other) = summary.mix.values()
    assert fraction == 1.0 and other == pytest.approx(tales / lines, rel=0.15)
    found = documents(tmp_path / "mix") + documents(tmp_path / "mix", "validation")
    sizes = {kind: sum(len(t) for t in found if t.startswith(kind)) for kind in ("tale", "line")}
    assert sizes["tale"] == tales
    assert sizes["line"] == pytest.approx(tales, rel=0.15)
    assert sizes["line"] == round(other * lines)
    # Interleaved: every quarter has both.
    quarter = len(found) // 4
    for begin in range(0, 3 * quarter, quarter):
        part = found[begin : begin + quarter]
        assert 0.2 < np.mean([text.startswith("tale") for text in part]) < 0.95
    mix(corpus, tmp_path / "again", num_threads=1, batch_bytes=300)
    assert documents(tmp_path / "again") == documents(tmp_path / "mix")
    with pytest.raises(DataError, match=r"its mix is .*a\.txt=0.5 .*b\.jsonl=0.5, not None"):
        prepare([corpus / "a.txt"], TOKENIZER, tmp_path / "mix", shuffle_documents=0)


def test_a_text_of_one_document_that_a_mix_takes_nothing_of_is_named(
    corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "one.txt").write_text("one long document " * 20_000)
    weights = {str(corpus / "a.txt"): 0.999, str(tmp_path / "one.txt"): 0.001}
    summary = prepare([], TOKENIZER, tmp_path / "mix", mix=weights)
    assert summary.mix is not None and summary.mix[str(tmp_path / "one.txt")][1] == 0
    assert f"none of {tmp_path / 'one.txt'}: it has too few" in caplog.text


def test_a_mix_that_cannot_be_is_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name the inputs in --mix, or without weights"):
        make(corpus, tmp_path / "x", mix={"a": 1.0})
    weights = {str(corpus): 1.0, str(corpus / "a.txt"): 1.0}
    with pytest.raises(ConfigError, match=r"a\.txt is in .* and in "):
        prepare([], TOKENIZER, tmp_path / "x", mix=weights)
    with pytest.raises(DataError, match="gone does not exist"):
        prepare([], TOKENIZER, tmp_path / "x", mix={str(tmp_path / "gone"): 1.0})
    assert not (tmp_path / "x").exists()
