"""Verifying shards: any damage is found and named, with its place where it has one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from groundup.data.prepare import prepare
from groundup.data.shards import verify
from groundup.data.shards.index import HASH_BLOCK_BYTES, HashTree
from groundup.errors import DataError
from groundup.tokenizer import Tokenizer


@pytest.fixture
def folder(corpus: list[Path], tokenizer: Tokenizer, tmp_path: Path) -> Path:
    out = tmp_path / "shards"
    prepare(corpus, tokenizer, out, shard_ids=5000, validation_fraction=0.1)
    return out


def change_shard(folder: Path, place: int, id: int) -> Path:
    path = folder / "train_000001.bin"
    ids = np.fromfile(path, "<u2")
    ids[place] = id
    ids.tofile(path)
    return path


def bless(folder: Path, **changes: Any) -> None:
    """Make the index agree with a changed train_000001.bin, as a careful forger would."""
    path = folder / "index.json"
    index = json.loads(path.read_text())
    tree = HashTree()
    tree.add_bytes((folder / "train_000001.bin").read_bytes())
    split = index["splits"]["train"]
    shard = split["shards"][1]
    for name, value in changes.items():
        split[name] += value - shard[name]
    shard.update(hash=tree.value(), **changes)
    path.write_text(json.dumps(index))


def test_sound_shards_pass(folder: Path, tokenizer: Tokenizer) -> None:
    calls: list[tuple[int, int | None]] = []
    summary = verify(folder, tokenizer, lambda done, total: calls.append((done, total)))
    sizes = [path.stat().st_size for path in folder.glob("*.bin")]
    assert summary.num_shards == len(sizes) and summary.num_bytes == sum(sizes)
    assert calls[-1] == (sum(sizes), sum(sizes))
    verify(folder)


@pytest.mark.parametrize("place", [0, 1, 4000, -1])
def test_a_flipped_bit_is_found(folder: Path, place: int) -> None:
    path = folder / "validation_000000.bin"
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"validation_000000\.bin"):
        verify(folder)


def test_an_id_out_of_range_is_named_with_its_byte(folder: Path, tokenizer: Tokenizer) -> None:
    change_shard(folder, 123, tokenizer.vocab_size)
    with pytest.raises(DataError, match=r"train_000001\.bin has id 300 at byte 246, which is not"):
        verify(folder)


def test_an_id_that_the_vocabulary_leaves_out_is_found(corpus: list[Path], tmp_path: Path) -> None:
    vocab = {id: bytes([id]) for id in range(256)} | {300: b"<|endoftext|>"}
    tokenizer = Tokenizer(vocab, [], ["<|endoftext|>"])
    out = tmp_path / "gaps"
    prepare(corpus, tokenizer, out, shard_ids=5000)
    change_shard(out, 7, 280)
    with pytest.raises(DataError, match="id 280 at byte 14, which is not in"):
        verify(out, tokenizer)


def test_a_missing_shard_is_found(folder: Path) -> None:
    (folder / "validation_000000.bin").unlink()
    with pytest.raises(DataError, match=r"validation_000000\.bin is missing"):
        verify(folder)


def test_another_tokenizer_is_refused(folder: Path, other_tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match="not with sha256:"):
        verify(folder, other_tokenizer)


def test_a_shard_must_end_where_a_document_ends(folder: Path) -> None:
    change_shard(folder, -1, 7)
    bless(folder)
    with pytest.raises(DataError, match=r"train_000001\.bin does not end with the end id"):
        verify(folder)


def test_documents_are_counted(folder: Path) -> None:
    bless(folder, num_documents=100_000)
    with pytest.raises(DataError, match="100000 documents that the index counts"):
        verify(folder)


def test_tokens_must_add_up_to_the_text(folder: Path, tokenizer: Tokenizer) -> None:
    bless(folder, num_bytes=5)
    verify(folder)
    with pytest.raises(DataError, match="bytes of text where the index says 5"):
        verify(folder, tokenizer)


def test_an_end_token_inside_a_record_counts_as_text(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps({"text": "the fox<|endoftext|>the kite"}) + "\n")
    index = prepare([path], tokenizer, tmp_path / "out", validation_fraction=0).index
    assert index.splits["train"].num_documents == 1
    verify(tmp_path / "out", tokenizer)


def test_shards_longer_than_a_block_are_hashed_whole(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "long.txt"
    path.write_bytes(bytes(range(97, 123)) * (HASH_BLOCK_BYTES // 20))
    prepare([path], tokenizer, tmp_path / "out", validation_fraction=0)
    shard = tmp_path / "out" / "train_000000.bin"
    assert shard.stat().st_size > 2 * HASH_BLOCK_BYTES
    verify(tmp_path / "out", tokenizer)
    data = bytearray(shard.read_bytes())
    data[HASH_BLOCK_BYTES + 10] ^= 1
    shard.write_bytes(data)
    with pytest.raises(DataError, match="damaged: its hash is"):
        verify(tmp_path / "out", tokenizer)
