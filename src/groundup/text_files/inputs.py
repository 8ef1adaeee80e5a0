"""Which files are meant: files, folders, globs and standard input become a list of sources."""

import glob
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from groundup.errors import DataError

STDIN: Literal["-"] = "-"
Source = Path | Literal["-"]
Kind = Literal["text", "json_lines", "parquet"]
Compression = Literal["gzip", "zstd"]

_KINDS: dict[str, Kind] = {
    ".txt": "text",
    ".jsonl": "json_lines",
    ".ndjson": "json_lines",
    ".json-lines": "json_lines",
    ".parquet": "parquet",
}
_COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd"}

_log = logging.getLogger(__name__)


def expand_inputs(inputs: Sequence[str | os.PathLike[str]]) -> list[Source]:
    """The files that `inputs` name, in order; a folder or glob gives its files sorted by path.

    Of a folder, files of the known suffixes count, at any depth, links followed, hidden ones left
    out; a file named outright is read whatever its suffix. One named twice is read once.
    """
    sources: list[Source] = []
    seen: set[str] = set()
    for text in inputs:
        expanded: list[Source] = [STDIN] if text == STDIN else [*_expand(os.fspath(text))]
        for source in expanded:
            identity = source if source == STDIN else os.path.realpath(source)
            if identity in seen:
                _log.warning("%s is named twice; it is read once", source)
                continue
            seen.add(identity)
            sources.append(source)
    if not sources:
        raise DataError("no input: name at least one file, folder or glob, or - for standard input")
    return sources


def classify(source: Source) -> tuple[Kind, Compression | None]:
    """What the name says about a source; an unknown suffix is plain text."""
    if source == STDIN:
        return "text", None
    stem, suffix = os.path.splitext(source.name.lower())
    compression = _COMPRESSIONS.get(suffix)
    if compression is not None:
        suffix = os.path.splitext(stem)[1]
    return _KINDS.get(suffix, "text"), compression


def _expand(text: str) -> list[Path]:
    path = Path(text)
    if path.is_dir():
        files = _files_of_folder(path)
        if not files:
            known = ", ".join(_KINDS)
            raise DataError(f"folder {path} has no text files ({known}, also with .gz or .zst)")
        return files
    if os.path.lexists(path):
        return [path]
    if not glob.has_magic(text):
        raise DataError(f"{text} does not exist; check the name")
    files = []
    for match in sorted(map(Path, glob.iglob(text, recursive=True))):
        files += _files_of_folder(match) if match.is_dir() else [match]
    if not files:
        raise DataError(f"no file matches {text}; check the pattern")
    # `**` gives a folder and its files both; that is no mistake of the user's.
    return list(dict.fromkeys(files))


def _files_of_folder(folder: Path) -> list[Path]:
    return sorted(file for file in _walk(folder) if _has_known_suffix(file))


def _walk(folder: Path) -> Iterator[Path]:
    visited: set[str] = set()
    for parent, folders, files in os.walk(folder, followlinks=True, onerror=_refuse):
        # Links can form a loop; a folder is walked the first time it is met.
        real = os.path.realpath(parent)
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent, name) for name in sorted(files) if not name.startswith("."))


def _refuse(error: OSError) -> None:
    raise DataError(f"folder {error.filename} cannot be read: {error.strerror}") from error


def _has_known_suffix(file: Path) -> bool:
    suffixes = [suffix.lower() for suffix in file.suffixes[-2:]]
    if suffixes and suffixes[-1] in _COMPRESSIONS:
        suffixes.pop()
    return bool(suffixes) and suffixes[-1] in _KINDS
