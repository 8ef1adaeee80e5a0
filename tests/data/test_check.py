"""Shards before the first step: what is checked cheaply, what on request, and the ids returned."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from groundup.data.prepare import prepare
from groundup.data.shards import DataIds, check_shards, check_vocabulary, content_id, read_index
from groundup.errors import ConfigError, DataError
from groundup.tokenizer import Tokenizer


@pytest.fixture
def folder(corpus: list[Path], tokenizer: Tokenizer, tmp_path: Path) -> Path:
    out = tmp_path / "shards"
    prepare(corpus, tokenizer, out, shard_ids=5000, validation_fraction=0.1)
    return out


def change_id(path: Path, place: int, id: int) -> None:
    ids = np.fromfile(path, "<u2")
    ids[place] = id
    ids.tofile(path)


@pytest.mark.parametrize("full", [False, True])
def test_sound_shards_pass_and_are_named(folder: Path, tokenizer: Tokenizer, full: bool) -> None:
    index = read_index(folder)
    assert check_shards(folder, tokenizer, full=full) == DataIds(
        folder=str(folder),
        content=content_id(index),
        tokenizer=tokenizer.id,
        vocab_size=300,
        num_ids={name: split.num_ids for name, split in index.splits.items()},
    )


def test_the_ids_can_be_written_down(folder: Path, tokenizer: Tokenizer) -> None:
    ids = check_shards(folder, tokenizer, ["train"])
    again = DataIds(**json.loads(json.dumps(dataclasses.asdict(ids))))
    assert again == ids and list(ids.num_ids) == ["train"]


def test_the_content_id_goes_by_content(
    corpus: list[Path], folder: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    moved = [Path(shutil.move(path, f"{path}.moved.txt")) for path in corpus]
    for name, settings in [("same", {}), ("other", {"validation_fraction": 0.2})]:
        prepare(
            moved,
            tokenizer,
            tmp_path / name,
            **{"shard_ids": 5000, "validation_fraction": 0.1} | settings,  # type: ignore[arg-type]
        )
    ids = [content_id(read_index(tmp_path / name)) for name in ("shards", "same", "other")]
    assert ids[0] == ids[1] != ids[2]
    assert ids[0].startswith("sha256:")


@pytest.mark.parametrize("place", [0, 1000, -1])
@pytest.mark.parametrize(("file", "id"), [("train_000000.bin", 300), ("train_000001.bin", 65535)])
def test_ids_beyond_the_vocabulary_are_named(
    folder: Path, tokenizer: Tokenizer, place: int, file: str, id: int
) -> None:
    change_id(folder / file, place, id)
    size = (folder / file).stat().st_size
    offset = (2 * place) % size
    with pytest.raises(DataError, match=rf"{file} has id {id} at byte {offset}, which is not in"):
        check_shards(folder, tokenizer)


def test_the_last_id_of_a_split_is_looked_at(folder: Path, tokenizer: Tokenizer) -> None:
    path = max(folder.glob("train_*.bin"))
    change_id(path, -1, 999)
    with pytest.raises(DataError, match=f"{path.name} has id 999"):
        check_shards(folder, tokenizer)


def test_a_changed_id_is_found_by_the_full_check(folder: Path, tokenizer: Tokenizer) -> None:
    path = folder / "validation_000000.bin"
    ids = np.fromfile(path, "<u2")
    change_id(path, 10, (int(ids[10]) + 1) % 256)
    check_shards(folder, tokenizer)
    with pytest.raises(DataError, match=r"validation_000000\.bin is damaged: its hash"):
        check_shards(folder, tokenizer, full=True)


def test_missing_and_cut_files_are_named(folder: Path, tokenizer: Tokenizer) -> None:
    path = folder / "validation_000000.bin"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(DataError, match=r"validation_000000\.bin has \d+ bytes where"):
        check_shards(folder, tokenizer)
    path.unlink()
    with pytest.raises(DataError, match=r"validation_000000\.bin is missing"):
        check_shards(folder, tokenizer)
    check_shards(folder, tokenizer, ["train"])


def test_another_tokenizer_is_refused(folder: Path, other_tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match="not with sha256:"):
        check_shards(folder, other_tokenizer)


def test_splits_that_are_not_there_are_refused(
    corpus: list[Path], tokenizer: Tokenizer, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="did you mean train"):
        check_shards(folder, tokenizer, ["trian"])
    with pytest.raises(ConfigError, match="no split was named"):
        check_shards(folder, tokenizer, [])
    prepare(corpus, tokenizer, tmp_path / "out", validation_fraction=0)
    with pytest.raises(DataError, match="nothing in its split validation"):
        check_shards(tmp_path / "out", tokenizer)
    check_shards(tmp_path / "out", tokenizer, ["train"])


def test_a_folder_without_an_index_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no index\.json"):
        check_shards(tmp_path, tokenizer)


def test_a_model_must_know_all_ids(folder: Path) -> None:
    index = read_index(folder)
    check_vocabulary(index, 300)
    check_vocabulary(index, 320)
    with pytest.raises(ConfigError, match=r"vocab_size 299 is too small .* up to 299; .* to 300"):
        check_vocabulary(index, 299)
