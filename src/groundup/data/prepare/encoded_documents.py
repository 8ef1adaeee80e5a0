"""Documents as ids, on their way from whoever encodes them to the one who writes them."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from groundup.data.prepare.sources import SkippedDocuments, SourceEnd


@dataclass(frozen=True)
class EncodedDocuments:
    """Document i is ids[offsets[i]:offsets[i + 1]] and had lengths[i] bytes.

    `ends` says after how many of the documents a source is over. `is_whole` is False for a part
    of a single document whose rest follows.
    """

    ids: npt.NDArray[Any]
    offsets: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.uint64]
    lengths: npt.NDArray[np.int64]
    ends: list[tuple[int, SourceEnd]] = field(default_factory=list)
    is_whole: bool = True

    def skip(self, count: int, path: str) -> "tuple[SkippedDocuments, EncodedDocuments]":
        """The first documents as skipped ones, up to the end of their source, and the others.

        count: how many to skip.
        path: of the source that they are from.
        """
        num_rows = self.ends[0][0] if self.ends else len(self.lengths)
        row = min(count, num_rows)
        num_bytes = int(self.lengths[:row].sum())
        begin, offsets = int(self.offsets[row]), self.offsets[row:]
        rest = EncodedDocuments(
            self.ids[begin:],
            offsets - begin,
            self.hashes[row:],
            self.lengths[row:],
            [(at - row, end) for at, end in self.ends],
            # Of a long document that is skipped nothing is left.
            self.is_whole or row > 0,
        )
        hashes = self.hashes[: row if self.is_whole else 0]
        return SkippedDocuments(path, hashes, num_bytes), rest
