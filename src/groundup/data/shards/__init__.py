"""Encoded corpora on disk: index, reading and integrity checks. `prepare` writes them.

A folder holds raw little-endian token ids in `train_000000.bin`, `validation_000000.bin` and so on,
and `index.json`, which describes them.
"""

from groundup.data.shards.check import DataIds as DataIds
from groundup.data.shards.check import check_shards as check_shards
from groundup.data.shards.check import check_vocabulary as check_vocabulary
from groundup.data.shards.check import content_id as content_id
from groundup.data.shards.check import verify as verify
from groundup.data.shards.index import INDEX_NAME as INDEX_NAME
from groundup.data.shards.index import SIDECARS as SIDECARS
from groundup.data.shards.index import ShardIndex as ShardIndex
from groundup.data.shards.index import find_index as find_index
from groundup.data.shards.index import read_index as read_index
from groundup.data.shards.reading import Shards as Shards
from groundup.data.shards.reading import open_shards as open_shards
