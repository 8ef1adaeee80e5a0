"""Reading text: finding and opening files of many formats, and splitting them into documents."""

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
from groundup.text_files.reader import no_text_error, read, read_document_batches
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
    "no_text_error",
    "path_text",
    "read",
    "read_document_batches",
    "run_parts",
]
