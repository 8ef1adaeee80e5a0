"""Opening shards: arrays across borders, and cheap checks that name the file and the mend."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from groundup.data.prepare import prepare
from groundup.data.shards import open_shards, read_index
from groundup.errors import DataError
from groundup.tokenizer import Tokenizer


@pytest.fixture
def folder(corpus: list[Path], tokenizer: Tokenizer, tmp_path: Path) -> Path:
    out = tmp_path / "shards"
    prepare(corpus, tokenizer, out, shard_ids=5000, validation_fraction=0.1)
    return out


def edit_index(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "index.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


def test_reading_crosses_shard_borders(folder: Path, tokenizer: Tokenizer) -> None:
    shards = open_shards(folder, "train", tokenizer)
    assert len(shards.files) > 2
    whole = np.concatenate([np.fromfile(file.path, "<u2") for file in shards.files])
    assert shards.dtype == np.uint16 and shards.num_ids == len(shards) == len(whole)
    border = len(shards.files[0])
    for begin, end in [
        (0, 0),
        (0, 10),
        (border - 3, border + 4),
        (border, border),
        (0, len(whole)),
    ]:
        assert np.array_equal(shards.read(begin, end), whole[begin:end])
        assert np.array_equal(shards[begin:end], whole[begin:end])
    assert np.array_equal(shards[::7], whole[::7])
    assert np.array_equal(shards[-5:], whole[-5:])
    assert shards[border] == whole[border] and shards[-1] == whole[-1]


def test_a_shard_that_shrinks_in_use_is_named(folder: Path) -> None:
    shards = open_shards(folder)
    path = shards.files[0].path
    size = path.stat().st_size
    assert size > 8192
    os.truncate(path, size - 3)
    shards.read(0, 100)
    message = rf"{path} became shorter .* no 200 bytes at {size - 200}; put the file back"
    with pytest.raises(DataError, match=message):
        shards.read(len(shards.files[0]) - 100, len(shards.files[0]) + 5)


def test_open_shards_close_their_files(folder: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    shards = open_shards(folder)
    assert len(os.listdir("/proc/self/fd")) == before + len(shards.files)
    del shards
    assert len(os.listdir("/proc/self/fd")) == before


def test_places_outside_are_index_errors(folder: Path) -> None:
    shards = open_shards(folder)
    for place in (shards.num_ids, -shards.num_ids - 1):
        with pytest.raises(IndexError, match="train"):
            shards[place]
    with pytest.raises(IndexError):
        shards.read(0, shards.num_ids + 1)


def test_every_shard_ends_with_the_end_id(folder: Path, tokenizer: Tokenizer) -> None:
    for split in ("train", "validation"):
        for file in open_shards(folder, split).files:
            assert (
                np.fromfile(file.path, file.dtype)[-1] == tokenizer.special_tokens["<|endoftext|>"]
            )


def test_a_missing_shard_is_named(folder: Path) -> None:
    (folder / "train_000001.bin").unlink()
    with pytest.raises(DataError, match=r"train_000001\.bin is missing; .*--overwrite"):
        open_shards(folder)
    open_shards(folder, "validation")


def test_a_shard_of_the_wrong_size_is_named(folder: Path) -> None:
    path = folder / "train_000000.bin"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(DataError, match=r"train_000000\.bin has \d+ bytes where the index says"):
        open_shards(folder)


def test_another_tokenizer_is_refused(folder: Path, other_tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match=r"encoded with tokenizer sha256:.* not with sha256:"):
        open_shards(folder, "train", other_tokenizer)


def test_an_unknown_split_gets_the_nearest_name(folder: Path) -> None:
    with pytest.raises(DataError, match="did you mean validation"):
        open_shards(folder, "valid")


def test_a_newer_format_asks_for_an_update(folder: Path) -> None:
    edit_index(folder, lambda index: index.update(version=2))
    with pytest.raises(DataError, match=r"version 2.*update groundup"):
        open_shards(folder)


def test_a_foreign_index_is_refused(folder: Path) -> None:
    edit_index(folder, lambda index: index.update(format="parquet"))
    with pytest.raises(DataError, match="format is 'parquet'"):
        open_shards(folder)


def test_an_index_cut_short_is_refused(folder: Path) -> None:
    path = folder / "index.json"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match=r"index\.json is damaged or cut short"):
        open_shards(folder)


def test_a_missing_or_unknown_key_is_named(folder: Path) -> None:
    edit_index(folder, lambda index: index["splits"]["train"]["shards"][0].pop("hash"))
    with pytest.raises(DataError, match=r"splits\.train\.shards\.0\.hash"):
        open_shards(folder)


def test_sums_that_do_not_add_up_are_found(folder: Path) -> None:
    edit_index(folder, lambda index: index["splits"]["train"].update(num_ids=7))
    with pytest.raises(DataError, match="sums of split train"):
        open_shards(folder)


def test_the_index_cannot_lead_out_of_the_folder(folder: Path) -> None:
    def lead_out(index: dict[str, Any]) -> None:
        index["splits"]["train"]["shards"][0]["file"] = "../first.txt"

    edit_index(folder, lead_out)
    with pytest.raises(DataError, match="not in the folder"):
        open_shards(folder)


def test_folders_without_an_index_say_what_to_do(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match="nowhere does not exist; make shards with groundup data prepare"
    ):
        open_shards(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"has no index\.json"):
        open_shards(tmp_path)
    (folder / "index.json").rename(folder / "unfinished.json")
    with pytest.raises(DataError, match="not finished: run the same groundup data prepare again"):
        open_shards(folder)


@pytest.mark.parametrize("depth", [900, 100_000])
def test_a_deeply_nested_index_is_refused(tmp_path: Path, depth: int) -> None:
    (tmp_path / "index.json").write_text('{"format":' + "[" * depth + "]" * depth + "}", "utf-8")
    with pytest.raises(DataError, match=r"index.json is damaged.* nested too deep"):
        read_index(tmp_path)
