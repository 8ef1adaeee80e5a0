"""Shards on disk: reads across boundaries, and errors for damage that say how to fix it."""

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from groundup.data.prepare import prepare
from groundup.data.shards import (
    DataIds,
    check_shards,
    check_vocabulary,
    content_id,
    open_shards,
    read_index,
    verify,
)
from groundup.data.shards.index import HASH_BLOCK_BYTES
from groundup.errors import ConfigError, DataError
from groundup.tokenizer import Tokenizer

SETTINGS: dict[str, Any] = {"shard_bytes": 20_000, "validation_fraction": 0.1}


@pytest.fixture(scope="module")
def prepared(
    tokenizer: Tokenizer,
    make_documents: Callable[..., list[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    (folder / "corpus.txt").write_text("<|endoftext|>".join(make_documents(800)), "utf-8")
    prepare([folder / "corpus.txt"], tokenizer, folder / "shards", **SETTINGS)
    return folder / "shards"


@pytest.fixture
def folder(prepared: Path, tmp_path: Path) -> Path:
    """A copy of the shards that tests may damage."""
    return Path(shutil.copytree(prepared, tmp_path / "shards"))


def edit_index(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "index.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


# Reading


def test_reads_cross_shard_boundaries(prepared: Path, tokenizer: Tokenizer) -> None:
    shards = open_shards(prepared, "train", tokenizer)
    assert len(shards.files) > 2
    whole = np.concatenate([np.fromfile(file.path, "<u2") for file in shards.files])
    assert shards.dtype == np.uint16 and shards.num_tokens == len(shards) == len(whole)
    border = len(shards.files[0])
    ends = len(whole), len(whole)
    for begin, end in [(0, 0), (border - 3, border + 4), (border, border), (0, ends[0]), ends]:
        assert np.array_equal(shards.read(begin, end), whole[begin:end])
        assert np.array_equal(shards[begin:end], whole[begin:end])
    assert np.array_equal(shards[::7], whole[::7])
    assert np.array_equal(shards[-5:], whole[-5:])
    with pytest.raises(TypeError, match=r"with a slice .* not \[1, 2\]"):
        shards[[1, 2]]  # type: ignore[index]
    with pytest.raises(IndexError):
        shards.read(0, len(whole) + 1)
    assert f"train: {len(whole):,} ids" in repr(shards)


def test_a_shard_truncated_in_use_raises(folder: Path) -> None:
    shards = open_shards(folder)
    path = shards.files[0].path
    size = path.stat().st_size
    assert size > 8192
    os.truncate(path, size - 3)
    shards.read(0, 100)
    message = rf"{path} was truncated .*; put the file back"
    with pytest.raises(DataError, match=message):
        shards.read(len(shards.files[0]) - 100, len(shards.files[0]) + 5)


# What opening and every check find


def editing(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    return lambda folder: edit_index(folder, change)


def train(index: dict[str, Any]) -> Any:
    return index["splits"]["train"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda at: (at / "train_000001.bin").unlink(), r"train_000001\.bin is missing"),
        (lambda at: os.truncate(at / "train_000000.bin", 100), "has 100 bytes"),
        (lambda at: os.truncate(at / "index.json", 100), r"index\.json is damaged"),
        (lambda at: (at / "index.json").write_text("[" * 900 + "]" * 900), "nested too deep"),
        (editing(lambda index: index.update(version=2)), "another version of groundup, at version"),
        (editing(lambda index: index.update(format="parquet")), "at format"),
        (editing(lambda index: train(index)["shards"][0].pop("hash")), r"train\.shards\.0\.hash"),
        (
            editing(lambda index: train(index)["shards"][0].update(num_tokens=0)),
            r"shards\.0\.num_tokens",
        ),
        (editing(lambda index: train(index).update(num_tokens=7)), "totals of split train"),
        (editing(lambda index: index["splits"].update(traIn=train(index))), "at splits.traIn"),
        (editing(lambda index: train(index)["shards"][0].update(file="../a")), "not in the folder"),
        (editing(lambda index: train(index)["shards"][0].update(file="a" * 300)), "0.file: .* 255"),
        (editing(lambda index: index.update({"a" * 99_999: 1})), "run groundup data prepare again"),
        (lambda at: (at / "index.json").unlink(), r"has no index\.json"),
        (lambda at: (at / "index.json").rename(at / "shard_000000.json"), "not finished"),
        (shutil.rmtree, "does not exist"),
    ],
)
def test_cheap_checks_are_made_on_opening(
    folder: Path, tokenizer: Tokenizer, damage: Callable[[Path], None], message: str
) -> None:
    damage(folder)
    for check in (open_shards, verify, lambda folder: check_shards(folder, tokenizer)):
        with pytest.raises(DataError, match=message) as caught:
            check(folder)
        assert len(str(caught.value)) < 3_000


def test_another_tokenizer_is_rejected(prepared: Path, other_tokenizer: Tokenizer) -> None:
    for check in (
        lambda: open_shards(prepared, "train", other_tokenizer),
        lambda: check_shards(prepared, other_tokenizer),
        lambda: verify(prepared, other_tokenizer),
    ):
        with pytest.raises(DataError, match=r"encoded with tokenizer sha256:.* not with sha256:"):
            check()


def test_an_end_token_that_the_tokenizer_lacks_is_rejected(
    folder: Path, tokenizer: Tokenizer
) -> None:
    edit_index(folder, lambda index: index["end"].update(text="<|endoftexu|>"))
    for check in (check_shards, verify):
        with pytest.raises(DataError, match=r"not .*None"):
            check(folder, tokenizer)


def test_missing_splits_are_rejected(
    corpus: list[Path], tokenizer: Tokenizer, prepared: Path, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="did you mean validation"):
        open_shards(prepared, "valid")
    with pytest.raises(DataError, match="is a file"):
        open_shards(corpus[0])
    with pytest.raises(DataError, match="did you mean train"):
        check_shards(prepared, tokenizer, ["trian"])
    prepare(corpus, tokenizer, tmp_path / "out", validation_fraction=0)
    with pytest.raises(DataError, match="no tokens in split validation"):
        check_shards(tmp_path / "out", tokenizer)
    check_shards(tmp_path / "out", tokenizer, ["train"])


# Before training


def test_intact_shards_pass(prepared: Path, tokenizer: Tokenizer) -> None:
    index = read_index(prepared)
    num_tokens: dict[str, int] = {one: split.num_tokens for one, split in index.splits.items()}
    expected = DataIds(str(prepared), content_id(index), tokenizer.id, 300, num_tokens)
    assert check_shards(prepared, tokenizer) == check_shards(prepared, tokenizer, full=True)
    assert check_shards(prepared, tokenizer) == expected
    assert DataIds(**json.loads(json.dumps(dataclasses.asdict(expected)))) == expected


def test_the_content_id_depends_only_on_content(
    corpus: list[Path], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    ids = []
    for name, fraction in [("first", 0.1), ("same", 0.1), ("other", 0.2)]:
        prepare(corpus, tokenizer, tmp_path / name, validation_fraction=fraction)
        ids.append(content_id(read_index(tmp_path / name)))
        corpus = [Path(shutil.move(path, f"{path}.moved.txt")) for path in corpus]
    assert ids[0] == ids[1] != ids[2]
    assert ids[0].startswith("sha256:")


def test_vocab_size_must_cover_all_ids(prepared: Path) -> None:
    index = read_index(prepared)
    check_vocabulary(index, 300)
    check_vocabulary(index, 320)
    with pytest.raises(ConfigError, match=r"vocab_size 299 is too small .* up to 299; .* to 300"):
        check_vocabulary(index, 299)


# Every byte


def test_verification_reads_intact_shards_to_the_end(prepared: Path, tokenizer: Tokenizer) -> None:
    calls: list[tuple[int, int | None]] = []
    index = verify(prepared, tokenizer, lambda done, total: calls.append((done, total)))
    assert index == read_index(prepared)
    size = sum(path.stat().st_size for path in prepared.glob("*.bin"))
    assert calls == sorted(calls) and calls[-1] == (size, size)


def test_an_index_of_an_older_version_is_read(prepared: Path, folder: Path) -> None:
    def make_older(index: dict[str, Any]) -> None:
        del index["settings"]["shard_bytes"]
        index["settings"] |= {"shard_ids": 100_000_000, "column": "text"}
        for source in index["sources"]:
            del source["stamp"]

    edit_index(folder, make_older)
    assert np.array_equal(open_shards(folder)[:], open_shards(prepared)[:])


@pytest.mark.parametrize("position", [0, HASH_BLOCK_BYTES + 10, -1])
def test_a_flipped_bit_is_found_in_any_block(
    tmp_path: Path, tokenizer: Tokenizer, position: int
) -> None:
    (tmp_path / "long.txt").write_bytes(bytes(range(97, 123)) * (HASH_BLOCK_BYTES // 20))
    prepare([tmp_path / "long.txt"], tokenizer, tmp_path / "out", validation_fraction=0.1)
    shard = tmp_path / "out" / "train_000000.bin"
    data = bytearray(shard.read_bytes())
    assert len(data) > 2 * HASH_BLOCK_BYTES
    verify(tmp_path / "out", tokenizer)
    data[position] ^= 1
    shard.write_bytes(data)
    for check in (verify, lambda folder: check_shards(folder, tokenizer, full=True)):
        with pytest.raises(DataError, match=r"train_000000\.bin is damaged: its hash is"):
            check(tmp_path / "out")
