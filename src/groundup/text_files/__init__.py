"""Reading text: finding and opening files of many formats, and splitting them into documents."""

from groundup.text_files.documents import END_OF_TEXT as END_OF_TEXT
from groundup.text_files.documents import STDIN as STDIN
from groundup.text_files.documents import DocumentBatch as DocumentBatch
from groundup.text_files.documents import FindCut as FindCut
from groundup.text_files.documents import Part as Part
from groundup.text_files.documents import Reading as Reading
from groundup.text_files.documents import Skipped as Skipped
from groundup.text_files.documents import Source as Source
from groundup.text_files.parts import cut_into_parts as cut_into_parts
from groundup.text_files.parts import cut_part as cut_part
from groundup.text_files.parts import run_parts as run_parts
from groundup.text_files.reader import no_text_error as no_text_error
from groundup.text_files.reader import read as read
from groundup.text_files.reader import read_document_batches as read_document_batches
from groundup.text_files.sources import check_not_input as check_not_input
from groundup.text_files.sources import find_sources as find_sources
from groundup.text_files.sources import path_text as path_text
