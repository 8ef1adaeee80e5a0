"""Which files are meant: files, folders, globs and standard input become a list of sources."""

import contextlib
import glob
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, cast

from groundup.errors import ConfigError, DataError
from groundup.text_files.remote import RemoteFile, find_remote, is_remote

STDIN: Literal["-"] = "-"
Source = Path | RemoteFile | Literal["-"]
Kind = Literal["text", "html", "json_lines", "delimited", "parquet"]
Compression = Literal["gzip", "zstd", "xz"]
OnError = Literal["stop", "skip"]

# Prose and source code, each file one text unless a separator stands in it.
_TEXT_SUFFIXES = (
    ".txt .text .md .markdown .rst .tex .org .adoc .asciidoc "
    ".py .pyi .c .h .cc .cpp .cxx .hh .hpp .cu .cuh .cs .java .kt .scala .go .rs .swift .m .mm "
    ".js .jsx .mjs .ts .tsx .vue .css .scss .rb .php .pl .pm .lua .r .jl .hs .ml .mli .ex .exs "
    ".erl .clj .lisp .el .scm .f90 .f95 .pas .d .dart .nim .zig .v .vhd .asm .s .sh .bash .zsh "
    ".fish .ps1 .bat .sql .proto .cmake"
).split()
_KINDS: dict[str, Kind] = {
    **dict.fromkeys(_TEXT_SUFFIXES, "text"),
    ".jsonl": "json_lines",
    ".ndjson": "json_lines",
    ".json-lines": "json_lines",
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
    **dict.fromkeys((".csv", ".tsv"), "delimited"),
    ".parquet": "parquet",
}
_COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd", ".xz": "xz"}

_NAMES_SHOWN = 3

_log = logging.getLogger(__name__)


def expand_inputs(
    inputs: Sequence[str | os.PathLike[str]], on_error: OnError = "stop"
) -> list[Source]:
    """The files that `inputs` name, in order; a folder or glob gives its files sorted by path.

    Of a folder or glob, regular files count, links followed: pipes, devices, sockets, links to
    nothing and empty files are skipped with a warning. Of a folder they count at any depth if their
    suffix is one of prose, source code, pages, tables, JSON lines or Parquet; others are counted in
    a warning, as are folders of models and runs; hidden ones are left out. What is named outright
    is read whatever it is. A file named twice is read once.

    inputs: files, folders and globs, also remote ones, or "-" for standard input.
    on_error: "skip" passes over what cannot be looked at.
    """
    sources: list[Source] = []
    seen: set[str] = set()
    skipped = SkippedFiles("not a regular file")
    empty = SkippedFiles("empty")
    unknown = SkippedFiles("no suffix of a text")
    models = SkippedFiles("a model or a run")
    unreadable = SkippedFiles("cannot be read")
    for text in inputs:
        if not os.fspath(text):
            raise DataError("an input is an empty word: name a file, a folder or a glob")
        if text == STDIN:
            expanded: Iterator[tuple[Source, str]] = iter([(STDIN, STDIN)])
        else:
            may_skip = on_error == "skip"
            finder = _Finder(skipped, empty, unknown, models, unreadable if may_skip else None)
            expanded = finder.expand(os.fspath(text))
        for source, identity in expanded:
            if identity in seen:
                _log.warning("%s is named twice; it is read once", source)
                continue
            seen.add(identity)
            sources.append(source)
    for files in (skipped, empty, unknown, models, unreadable):
        files.warn()
    if not sources:
        raise DataError("no input: name at least one file, folder or glob, or - for standard input")
    return sources


def check_not_input(out: Path, sources: Sequence[Source]) -> None:
    """Raise ConfigError for a file to write that is one of those to read."""
    real = out.resolve()
    if any(isinstance(source, Path) and source.resolve() == real for source in sources):
        raise ConfigError(f"--out {out} is one of the inputs; name another file")


def classify(source: Source) -> tuple[Kind, Compression | None]:
    """What the name says about a source; an unknown suffix is plain text."""
    if source == STDIN:
        return "text", None
    assert isinstance(source, Path | RemoteFile)
    kind, compression = _classify_name(source.name)
    return kind or "text", compression


class SkippedFiles:
    """Counts files that are left out for one reason and names the first few in a warning."""

    def __init__(self, reason: str) -> None:
        self._reason = reason
        self._names: list[str] = []
        self._count = 0

    def add(self, name: str) -> None:
        self._count += 1
        if len(self._names) < _NAMES_SHOWN:
            self._names.append(name)

    def warn(self) -> None:
        if self._count:
            more = self._count - len(self._names)
            names = ", ".join(self._names) + (f" and {more:,} more" if more else "")
            inputs = "input" if self._count == 1 else "inputs"
            _log.warning("skipped %s %s (%s): %s", f"{self._count:,}", inputs, self._reason, names)


class _Finder:
    """Finds what one input names; each file comes with its real path, by which it is known."""

    def __init__(
        self,
        skipped: SkippedFiles,
        empty: SkippedFiles,
        unknown: SkippedFiles,
        models: SkippedFiles,
        unreadable: SkippedFiles | None,
    ) -> None:
        self._skipped = skipped
        self._empty = empty
        self._unknown = unknown
        self._models = models
        self._unreadable = unreadable
        self._visited: set[str] = set()

    def expand(self, text: str) -> Iterator[tuple[Source, str]]:
        path = Path(text)
        if is_remote(text) and not os.path.lexists(path):
            yield from self._remote(text)
        elif path.is_dir():
            yield from self._some(self._walk(path), f"folder {path} has no text files ({_known()})")
        elif os.path.lexists(path):
            yield path, os.path.realpath(path)
        elif glob.has_magic(text):
            found = self._matches(text)
            yield from self._some(found, f"no file matches {text}; check the pattern")
        else:
            raise DataError(f"{text} does not exist; check the name")

    def _remote(self, address: str) -> Iterator[tuple[Source, str]]:
        files, is_folder = find_remote(address)
        known = [file for file in files if not is_folder or _classify_name(file.name)[0]]
        for file in sorted(set(files).difference(known)):
            self._unknown.add(file)
        nothing = f"{address} has no text files ({_known()})"
        yield from self._some(((file, str(file)) for file in known), nothing)

    def _some(
        self, found: Iterator[tuple[Source, str]], otherwise: str
    ) -> Iterator[tuple[Source, str]]:
        is_none = True
        for file in found:
            is_none = False
            yield file
        if is_none:
            for files in (self._skipped, self._empty, self._unknown, self._models):
                files.warn()
            raise DataError(otherwise)

    def _matches(self, pattern: str) -> Iterator[tuple[Source, str]]:
        # `**` gives a folder and its files both; that is not the user's mistake.
        found: set[Source] = set()
        for match in sorted(map(Path, glob.iglob(pattern, recursive=True))):
            if match.is_dir():
                self._visited.clear()
                files = self._walk(match)
            elif match.is_file():
                if _is_empty(match):
                    self._empty.add(str(match))
                    continue
                files = iter([(cast(Source, match), os.path.realpath(match))])
            else:
                self._skipped.add(str(match))
                continue
            for file, identity in files:
                if file not in found:
                    found.add(file)
                    yield file, identity

    def _walk(self, folder: Path) -> Iterator[tuple[Source, str]]:
        """The text files under a folder in the order of their paths."""
        real = os.path.realpath(folder)
        levels = [(folder, real, self._enter(folder, real))]
        while levels:
            parent, real_parent, entries = levels[-1]
            entry = next(entries, None)
            if entry is None:
                levels.pop()
                continue
            is_folder = _is_folder(entry)
            if not is_folder and _classify_name(entry.name)[0] is None:
                self._unknown.add(entry.path)
                continue
            if not is_folder and not _is_regular(entry):
                self._skipped.add(entry.path)
                continue
            if not is_folder and _is_empty(entry):
                self._empty.add(entry.path)
                continue
            path, real = parent / entry.name, os.path.join(real_parent, entry.name)
            if entry.is_symlink():
                real = os.path.realpath(entry.path)
            if is_folder:
                inside = list(self._enter(path, real))
                if _is_model(inside):
                    self._models.add(entry.path)
                else:
                    levels.append((path, real, iter(inside)))
            else:
                yield path, real

    def _enter(self, folder: Path, real: str) -> Iterator[os.DirEntry[str]]:
        """What is to be looked at in a folder."""
        # Links can form a loop; a folder is walked the first time it is met.
        if real in self._visited:
            return iter(())
        self._visited.add(real)
        try:
            with os.scandir(folder) as entries:
                visible = [entry for entry in entries if not entry.name.startswith(".")]
        except OSError as error:
            if self._unreadable is None:
                raise DataError(f"folder {folder} cannot be read: {error.strerror}") from error
            self._unreadable.add(f"folder {folder}")
            return iter(())
        return iter(sorted(visible, key=lambda entry: entry.name))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with contextlib.suppress(OSError):
        return entry.is_dir()
    return False


def _is_model(entries: Sequence[os.DirEntry[str]]) -> bool:
    """Whether a folder holds these of an exported model or a run of ours, whose cards, logs and
    metrics are no text to learn from."""
    names = {entry.name for entry in entries}
    is_run = {"config.yaml", "metrics.jsonl"} <= names
    return is_run or any(name.endswith(".safetensors") for name in names)


def _is_regular(entry: os.DirEntry[str]) -> bool:
    # A link that leads to itself is an error here, one that leads nowhere is not.
    with contextlib.suppress(OSError):
        return entry.is_file()
    return False


def _is_empty(file: os.DirEntry[str] | Path) -> bool:
    # One that cannot be looked at is told of where it is read.
    with contextlib.suppress(OSError):
        return file.stat().st_size == 0
    return False


def _classify_name(name: str) -> tuple[Kind | None, Compression | None]:
    stem, suffix = os.path.splitext(name.lower())
    compression = _COMPRESSIONS.get(suffix)
    if compression is not None:
        suffix = os.path.splitext(stem)[1]
    return _KINDS.get(suffix), compression


def _known() -> str:
    kinds = [".txt", ".md", ".rst", ".tex", "source code", *(set(_KINDS) - set(_TEXT_SUFFIXES))]
    return f"{', '.join(sorted(kinds))}, also with .gz, .zst or .xz; name other files one by one"
