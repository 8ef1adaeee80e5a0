"""Corpora as documents: the front of `text_files` for what makes shards and batches of them."""

from groundup.text_files import (
    END_OF_TEXT,
    STDIN,
    DocumentBatch,
    OnError,
    SkippedFiles,
    SmallFile,
    Source,
    UnreadableError,
    bounds_of,
    expand_inputs,
    read_document_batches,
    read_small_files,
    read_text_blocks,
)

__all__ = [
    "END_OF_TEXT",
    "STDIN",
    "DocumentBatch",
    "OnError",
    "SkippedFiles",
    "SmallFile",
    "Source",
    "UnreadableError",
    "bounds_of",
    "expand_inputs",
    "read_document_batches",
    "read_small_files",
    "read_text_blocks",
]
