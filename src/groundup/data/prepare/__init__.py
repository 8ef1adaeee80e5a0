"""Encode files into shards. An interrupted run resumes after its last finished shard."""

from groundup.data.prepare.prepare import PrepareSummary, prepare

__all__ = ["PrepareSummary", "prepare"]
