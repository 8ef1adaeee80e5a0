"""Supported file formats; to add one, add a row to `FORMATS`."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import IO, NamedTuple

from groundup.text_files.documents import Reading
from groundup.text_files.office import (
    read_docx,
    read_epub,
    read_html,
    read_notebook,
    read_pdf,
)
from groundup.text_files.parquet import read_parquet
from groundup.text_files.records import read_texts


class Format(NamedTuple):
    """How to read files with these suffixes."""

    suffixes: str
    read: Callable[[IO[bytes], Reading, str, list[str]], Iterator[bytes]] | None = None
    """Yields the documents of a decompressed stream, given its name for errors; adds notes on what
    was skipped. None for plain text, which is split at separators."""
    is_binary: bool = False
    """Not text: skip detecting and decoding its encoding."""


FORMATS = {
    # Prose and source code: each file is one document unless it contains separators.
    "text": Format(
        ".txt .text .md .markdown .rst .tex .org .adoc .asciidoc "
        ".py .pyi .c .h .cc .cpp .cxx .hh .hpp .cu .cuh .cs .java .kt .scala .go .rs .swift .m .mm "
        ".js .jsx .mjs .ts .tsx .vue .css .scss .rb .php .pl .pm .lua .r .jl .hs .ml .mli .ex .exs "
        ".erl .clj .lisp .el .scm .f90 .f95 .pas .d .dart .nim .zig .v .vhd .asm .s .sh .bash .zsh "
        ".fish .ps1 .bat .sql .proto .cmake .yaml .yml .toml .srt .vtt"
    ),
    "json_lines": Format(".jsonl .ndjson .json-lines", partial(read_texts, "json_lines")),
    "json": Format(".json", partial(read_texts, "json")),
    "delimited": Format(".csv .tsv", partial(read_texts, "delimited")),
    "html": Format(".html .htm .xhtml", read_html),
    "parquet": Format(".parquet", read_parquet, is_binary=True),
    "notebook": Format(".ipynb", read_notebook),
    "docx": Format(".docx", read_docx, is_binary=True),
    "epub": Format(".epub", read_epub, is_binary=True),
    "pdf": Format(".pdf", read_pdf, is_binary=True),
    # Each member is read according to its own suffix.
    "archive": Format(".zip .tar", is_binary=True),
}
BY_SUFFIX = {suffix: name for name, one in FORMATS.items() for suffix in one.suffixes.split()}
