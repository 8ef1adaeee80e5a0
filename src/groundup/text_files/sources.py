"""Resolve files, folders, globs and URLs to a list of sources."""

import contextlib
import functools
import glob
import hashlib
import logging
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from groundup.errors import ConfigError, DataError
from groundup.text_files.documents import STDIN, Reading, Skipped, Source
from groundup.text_files.formats import BY_SUFFIX
from groundup.text_files.opening import explained_errors, stamp_of

_COMPRESSIONS: dict[str, Literal["gzip", "zstd", "xz"]] = {
    ".gz": "gzip",
    ".zst": "zstd",
    ".xz": "xz",
}
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?:::|://)")
_NAMES_SHOWN = 3
_LEADS_OUT = "a link out of the folder; see --follow-links"

_log = logging.getLogger(__name__)


def find_sources(
    inputs: Sequence[str | os.PathLike[str]],
    reading: Reading | None = None,
    skipped: list[Skipped] | None = None,
) -> list[Source]:
    """Return the files that `inputs` name, in order; those of a folder or glob are sorted by path.

    A folder is searched at any depth for visible, regular, non-empty files with a known suffix.
    Skips folders of models and runs and, unless `follow_links`, links that lead out of the folder.
    Files named explicitly are always read; a file named twice is read once.

    skipped: collects the files that were skipped; by default a warning names them.
    """
    reading = reading or Reading()
    found: dict[object, tuple[int, Source]] = {}
    left_out: list[Skipped] = []
    for number, text in enumerate(inputs):
        matches = list(_expand(text, left_out, reading.follow_links))
        for source, identity in matches:
            if found.setdefault(identity, (number, source))[0] != number:
                _log.warning("%s is named twice; reading it once", source)
        if not matches:
            _warn(left_out)
            raise DataError(
                f"{text} has no text files (.txt, .md, .html, .jsonl, .csv, .pdf, .zip, source "
                f"code and more, also with .gz, .zst or .xz); name other files one by one"
            )
    if not found:
        raise DataError("no input: name at least one file, folder or glob, or - for standard input")
    sources = [source for _, source in found.values()]
    if reading.drop_duplicates:
        sources = list(_without_duplicates(sources, left_out))
    if skipped is None:
        _warn(left_out)
    else:
        skipped += left_out
    return sources


def show_names(names: Sequence[str]) -> str:
    """Join the first few names and count the others."""
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def check_not_input(out: Path, sources: Sequence[Source]) -> None:
    """Raise ConfigError if the output file is one of the inputs."""
    real = os.path.realpath(out)
    if any(not source.is_remote and os.path.realpath(source) == real for source in sources):
        raise ConfigError(f"--out {out} is one of the inputs; name another file")


def path_text(path: str | os.PathLike[str]) -> str:
    """Return a path or URL as valid UTF-8 text, with other bytes escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _expand(
    text: str | os.PathLike[str], skipped: list[Skipped], follow_links: bool
) -> Iterator[tuple[Source, object]]:
    """Yield the sources of one input, each with a key that identifies the file."""
    path = os.fspath(text)
    if isinstance(text, Source):
        yield text, text.path
    elif not path:
        raise DataError("an input is an empty string; name a file, a folder or a glob")
    elif path == STDIN:
        yield Source(STDIN), STDIN
    elif _ADDRESS.match(path) and not os.path.lexists(path):
        yield from ((source, source.path) for source in _find_remote(path, skipped))
    elif os.path.isdir(path):
        yield from _walk(path, skipped, follow_links)
    elif os.path.lexists(path):
        with explained_errors(path):
            status = os.stat(path)
        yield _source(path, status), (status.st_dev, status.st_ino)
    elif glob.has_magic(path):
        matches = list(_matches(path))
        if not matches:
            raise DataError(f"no file matches {path}; check the pattern")
        root = None if follow_links else os.path.dirname(re.split(r"[*?[]", path)[0])
        for match in sorted(matches, key=_parts):
            if root is not None and _leads_out(match, root):
                skipped.append(Skipped(match, _LEADS_OUT))
            elif os.path.isdir(match):
                yield from _walk(match, skipped, follow_links)
            else:
                yield from _found_file(match, skipped, root)
    else:
        raise DataError(f"{path} does not exist; check the name")


def _matches(pattern: str) -> Iterator[str]:
    """Like glob.iglob, but `**` does not follow links, which may be cyclic."""
    before, *after = re.split(r"(?:^|(?<=/))\*\*(?:/|$)", pattern, maxsplit=1)
    if not after:
        yield from glob.iglob(pattern)
        return
    for top in glob.iglob(before) if before else [""]:
        for parent, folders, _ in os.walk(top or "."):
            # A folder that matches is searched later.
            folders[:] = [name for name in folders if after[0] and not name.startswith(".")]
            inner = glob.escape(parent if top else parent[2:])
            yield from _matches(os.path.join(inner, after[0] or "*"))


def _walk(
    folder: str, skipped: list[Skipped], follow_links: bool
) -> Iterator[tuple[Source, object]]:
    """Yield a folder's text files, sorted by path, then those of folders that links lead to."""

    def fail(error: OSError) -> None:
        if error.filename == folder:
            raise DataError(f"folder {folder} cannot be read: {error.strerror}") from error
        skipped.append(Skipped(error.filename, f"cannot be read: {error.strerror}"))

    paths, linked = list[str](), list[str]()
    for parent, folders, names in os.walk(folder, onerror=fail):
        if parent != folder and _is_model(names):
            skipped.append(Skipped(parent, "a model or run"))
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith(".")]
        links = filter(os.path.islink, [os.path.join(parent, name) for name in folders])
        linked += [path for path in links if _leads_out(path, folder)]
        paths += [os.path.join(parent, name) for name in names if not name.startswith(".")]
    for path in sorted(paths, key=_parts):
        if classify(path)[0] is None:
            skipped.append(Skipped(path, "unknown suffix", _size(path)))
        else:
            yield from _found_file(path, skipped, None if follow_links else folder)
    for path in linked:
        if follow_links:
            # Links out of that folder are not followed: they may be cyclic.
            yield from _walk(path, skipped, follow_links=False)
        else:
            skipped.append(Skipped(path, _LEADS_OUT))


def _found_file(
    path: str, skipped: list[Skipped], root: str | None
) -> Iterator[tuple[Source, object]]:
    """Yield a file found in a folder or glob if it is regular and not empty, unless it is a link
    that leads out of the folder `root`."""
    if root is not None and os.path.islink(path) and _leads_out(path, root):
        skipped.append(Skipped(path, _LEADS_OUT))
        return
    with contextlib.suppress(OSError):
        status = os.stat(path)
        if stat.S_ISREG(status.st_mode) and status.st_size:
            yield _source(path, status), (status.st_dev, status.st_ino)
            return
    is_empty = os.path.isfile(path) and not _size(path)
    skipped.append(Skipped(path, "empty" if is_empty else "not a regular file"))


def _leads_out(path: str, root: str) -> bool:
    """Whether a path leads out of a folder, through links."""
    real, inside = (os.path.join(os.path.realpath(one), "") for one in (path, root))
    return not real.startswith(inside)


def _size(path: str) -> int:
    with contextlib.suppress(OSError):
        return os.stat(path).st_size
    return 0


def _without_duplicates(sources: list[Source], skipped: list[Skipped]) -> Iterator[Source]:
    """Yield the sources, without those that have the same content and format as an earlier one."""
    sizes = Counter(one.size for one in sources)
    first: dict[object, Source] = {}
    for one in sources:
        key: object = one.path
        if one.size and not one.is_remote and sizes[one.size] > 1:
            key = (one.format, one.compression, one.size, _digest(one))
        other = first.setdefault(key, one)
        if other is one:
            yield one
        else:
            skipped.append(Skipped(one.path, f"a duplicate of {other}", one.size or 0))


@functools.lru_cache(maxsize=1 << 16)
def _digest(source: Source) -> bytes:
    """Return a hash of a file, or its path if it cannot be read."""
    with contextlib.suppress(OSError), open(source, "rb") as file:
        return hashlib.file_digest(file, "blake2b").digest()
    return os.fsencode(source.path)


def _find_remote(address: str, skipped: list[Skipped]) -> Iterator[Source]:
    with explained_errors(address):
        import fsspec

        system, path = fsspec.core.url_to_fs(address)
        is_file = system.isfile(path)
        if not is_file and glob.has_magic(path):
            found = system.glob(path, detail=True)
        elif not is_file and system.isdir(path):
            found = system.find(path, detail=True)
        else:
            found = {path: system.info(path)}
    for name, info in sorted(found.items()):
        full = str(system.unstrip_protocol(name))
        kind, compression = classify(full.split("?")[0] if full.startswith("http") else full)
        if info.get("type", "file") != "file":
            continue
        if kind is None and not is_file:
            skipped.append(Skipped(full, "unknown suffix", info.get("size") or 0))
            continue
        # Some servers only report the size.
        stamp = next(filter(None, map(info.get, ("ETag", "etag", "blob_id", "mtime"))), "unknown")
        yield Source(full, kind or "text", compression, info.get("size"), str(stamp), True)


def _source(path: str, status: os.stat_result) -> Source:
    kind, compression = classify(path)
    return Source(path, kind or "text", compression, *stamp_of(status))


def classify(path: str) -> tuple[str | None, Literal["gzip", "zstd", "xz"] | None]:
    """Return the format and compression of a file, by its name."""
    stem, suffix = os.path.splitext(path.lower())
    if suffix in (".tgz", ".txz"):
        stem, suffix = f"{stem}.tar", f".{suffix[2:]}"
    compression = _COMPRESSIONS.get(suffix)
    if compression is not None:
        suffix = os.path.splitext(stem)[1]
    return BY_SUFFIX.get(suffix), compression


def _is_model(names: Sequence[str]) -> bool:
    """Whether a folder is an exported model or a run, whose cards and logs are not a corpus."""
    is_run = {"config.yaml", "metrics.jsonl"} <= set(names)
    return is_run or any(name.endswith(".safetensors") for name in names)


def _parts(path: str) -> list[str]:
    return path.split(os.sep)


def _warn(skipped: Sequence[Skipped]) -> None:
    for reason in dict.fromkeys(one.reason for one in skipped):
        names = [one.path for one in skipped if one.reason == reason]
        _log.warning("skipped (%s): %s", reason, show_names(names))
