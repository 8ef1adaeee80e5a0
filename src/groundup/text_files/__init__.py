"""Text from files: which files are meant, how they are opened, and the documents in them.

What is done with documents is left to the packages above.
"""

from groundup.text_files.documents import (
    END_OF_TEXT,
    STDIN,
    DocumentBatch,
    FindCut,
    Part,
    Reading,
    Skipped,
    Source,
)
from groundup.text_files.parts import cut_into_parts, cut_part, run_parts
from groundup.text_files.reader import nothing_in, read, read_document_batches
from groundup.text_files.sources import check_not_input, find_sources, path_text

__all__ = [
    "END_OF_TEXT",
    "STDIN",
    "DocumentBatch",
    "FindCut",
    "Part",
    "Reading",
    "Skipped",
    "Source",
    "check_not_input",
    "cut_into_parts",
    "cut_part",
    "find_sources",
    "nothing_in",
    "path_text",
    "read",
    "read_document_batches",
    "run_parts",
]
