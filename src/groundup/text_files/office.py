"""Formats with one document per file: HTML, notebooks, Word, e-books and PDF."""

import functools
import json
import logging
import posixpath
import zipfile
from collections.abc import Callable, Iterator
from typing import IO, Any
from urllib.parse import unquote
from xml.etree import ElementTree

from groundup.errors import GroundupError, MissingExtraError
from groundup.text_files.documents import Reading, UnreadableError, encode
from groundup.text_files.html import text_of_page
from groundup.text_files.records import MAX_RECORD_BYTES

_SIGNS = {"tab": "\t", "br": "\n"}


def _one_document(parse: Callable[[IO[bytes]], str]) -> Callable[..., Iterator[bytes]]:
    """Turn a function that extracts the text of a file into the `read` of a format."""

    @functools.wraps(parse)
    def read(stream: IO[bytes], reading: Reading, name: str, notes: list[str]) -> Iterator[bytes]:
        try:
            text = parse(stream).strip()
        except GroundupError:
            raise
        except Exception as error:
            # The libraries raise any kind of exception for damaged files.
            reason = str(error) or type(error).__name__
            raise UnreadableError(f"{name} cannot be read: {reason:.200}") from error
        yield encode(text, reading.errors, name)

    return read


@_one_document
def read_html(stream: IO[bytes]) -> str:
    return text_of_page(_read_all(stream).decode("utf-8", "surrogateescape"))


@_one_document
def read_notebook(stream: IO[bytes]) -> str:
    """The cells of a Jupyter notebook without their output; code is fenced."""
    notebook = json.loads(_read_all(stream))
    language = notebook.get("metadata", {}).get("kernelspec", {}).get("language", "python")
    cells = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"]).strip()
        is_code = cell["cell_type"] == "code"
        cells.append(f"```{language}\n{text}\n```" if is_code and text else text)
    return "\n\n".join(filter(None, cells))


@_one_document
def read_docx(stream: IO[bytes]) -> str:
    """The paragraphs of a Word document, and the rows of its tables."""
    return _text_of(_member(zipfile.ZipFile(stream), "word/document.xml"))


@_one_document
def read_epub(stream: IO[bytes]) -> str:
    """The chapters of an e-book in reading order."""
    book = zipfile.ZipFile(stream)
    container = _member(book, "META-INF/container.xml")
    root = next(one.attrib["full-path"] for one in container.iter() if "full-path" in one.attrib)
    package = _member(book, root)
    hrefs = {one.get("id"): one.get("href", "") for one in package.iter() if "href" in one.attrib}
    chapters = []
    for one in package.iter():
        if "idref" in one.attrib:
            href = posixpath.join(posixpath.dirname(root), unquote(hrefs[one.attrib["idref"]]))
            with book.open(posixpath.normpath(href)) as page:
                chapters.append(text_of_page(_read_all(page).decode("utf-8-sig", "replace")))
    return "\n\n".join(chapters)


@_one_document
def read_pdf(stream: IO[bytes]) -> str:
    """The text of all pages; scanned pages have none."""
    try:
        import pypdf
    except ImportError as error:
        raise MissingExtraError("reading .pdf files", "documents") from error
    # pypdf logs every oddity in a file.
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    return "\n\n".join(page.extract_text() for page in pypdf.PdfReader(stream).pages)


def _member(archive: zipfile.ZipFile, name: str) -> ElementTree.Element:
    with archive.open(name) as stream:
        return ElementTree.fromstring(_read_all(stream))


def _text_of(node: ElementTree.Element) -> str:
    """Extract the text of an element of Word's XML; skips fallbacks, which repeat content."""
    name = node.tag.rpartition("}")[2]
    if name == "Fallback":
        return ""
    text = (node.text or "") if name == "t" else "".join(map(_text_of, node))
    if name == "tc":
        return " ".join(text.split()) + "\t"
    if name in ("p", "tr"):
        return text.rstrip() + "\n"
    return _SIGNS.get(name, text)


def _read_all(stream: IO[Any]) -> bytes:
    data = bytes(stream.read(MAX_RECORD_BYTES + 1))
    if len(data) > MAX_RECORD_BYTES:
        raise ValueError(f"a text of more than {MAX_RECORD_BYTES:,} bytes; split it up")
    return data
