"""Text from files: which files are meant, how they are opened, and the documents in them.

Plain text, JSON lines and Parquet, each also compressed, arrive as large buffers of UTF-8 with the
bounds of the documents in them. What is done with documents is left to the packages above.
"""

from groundup.text_files.documents import DocumentBatch
from groundup.text_files.inputs import STDIN, OnError, SkippedFiles, Source, expand_inputs
from groundup.text_files.opening import EmptyFileError, UnreadableError
from groundup.text_files.parts import TextPart, cut_into_parts, do_parts
from groundup.text_files.reader import (
    END_OF_TEXT,
    read_document_batches,
    read_sources,
    read_text_blocks,
)
from groundup.text_files.small_files import SmallFile, bounds_of, read_small_files

__all__ = [
    "END_OF_TEXT",
    "STDIN",
    "DocumentBatch",
    "EmptyFileError",
    "OnError",
    "SkippedFiles",
    "SmallFile",
    "Source",
    "TextPart",
    "UnreadableError",
    "bounds_of",
    "cut_into_parts",
    "do_parts",
    "expand_inputs",
    "read_document_batches",
    "read_small_files",
    "read_sources",
    "read_text_blocks",
]
