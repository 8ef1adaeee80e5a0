"""Encoded corpora on disk: index, reading and integrity checks. `prepare` writes them.

A folder holds raw little-endian token ids in `train_000000.bin`, `validation_000000.bin` and so on,
and `index.json`, which describes them.
"""

from groundup.data.shards.check import DataIds, check_shards, check_vocabulary, content_id, verify
from groundup.data.shards.index import INDEX_NAME, SIDECARS, ShardIndex, find_index, read_index
from groundup.data.shards.reading import Shards, open_shards

__all__ = [
    "INDEX_NAME",
    "SIDECARS",
    "DataIds",
    "ShardIndex",
    "Shards",
    "check_shards",
    "check_vocabulary",
    "content_id",
    "find_index",
    "open_shards",
    "read_index",
    "verify",
]
