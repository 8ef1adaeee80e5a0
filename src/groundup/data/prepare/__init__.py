"""Files to shards: documents are read, encoded and written; after a kill, whole shards are kept."""

from groundup.data.prepare.prepare import PrepareSummary, prepare

__all__ = ["PrepareSummary", "prepare"]
