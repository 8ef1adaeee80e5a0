"""Files to shards: documents are read, encoded and written, and a kill on the way costs little."""

from groundup.data.prepare.encoding import PrepareSummary, prepare

__all__ = ["PrepareSummary", "prepare"]
