"""Zip and tar archives: their files are read one after another, without extracting to disk."""

import functools
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import IO, Any

from groundup.errors import GroundupError
from groundup.text_files.documents import Source, UnreadableError
from groundup.text_files.opening import stream_of

# Larger archives may be zip bombs; users can extract them themselves.
_MAX_MEMBERS = 1_000_000
_MIN_LIMIT_BYTES, _MAX_RATIO = 1 << 30, 100
_CHUNK_BYTES = 1 << 18

# Opens one file of an archive.
Opener = Callable[[], Any]


class LimitError(UnreadableError):
    """An archive that exceeds the limits on files or unpacked size."""


def open_members(stream: IO[bytes], source: Source) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield name and content of an archive's regular files; read each before advancing.

    Their total size is limited.
    """
    left = most = max(_MIN_LIMIT_BYTES, _MAX_RATIO * (source.size or 0))

    def measure(opening: Opener) -> Iterator[bytes]:
        nonlocal left
        for data in _chunks(opening, source):
            left -= len(data)
            if left < 0:
                raise LimitError(f"{source} unpacks to more than {most:,} bytes")
            yield data

    try:
        suffixes = PurePath(source.path.lower()).suffixes
        if source.compression and suffixes[-2:-1] == [".zip"]:
            raise UnreadableError(f"{source} is compressed twice; unpack it")
        members: Iterator[tuple[str, IO[bytes]]]
        if suffixes[-1] == ".zip":
            members = ((name, stream_of(measure(opening))) for name, opening in _zip(stream))
        else:
            members = _tar(stream_of(measure(lambda: stream)), source)
        for number, member in enumerate(members):
            if number == _MAX_MEMBERS:
                raise LimitError(f"{source} has more than {_MAX_MEMBERS:,} files; unpack it")
            yield member
    except (tarfile.TarError, zipfile.BadZipFile, NotImplementedError) as error:
        raise UnreadableError(f"{source} cannot be read: {error}") from error


def _zip(stream: IO[bytes]) -> Iterator[tuple[str, Opener]]:
    archive = zipfile.ZipFile(stream)
    for info in archive.infolist():
        if not info.is_dir():
            yield info.filename, functools.partial(archive.open, info)


def _tar(stream: IO[bytes], source: Source) -> Iterator[tuple[str, IO[bytes]]]:
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            # Otherwise tarfile keeps every member in memory.
            archive.members = []  # type: ignore[attr-defined]
            if member.isreg() and not member.issparse():
                opening = functools.partial(archive.extractfile, member)
                yield member.name, stream_of(_chunks(opening, source))


def _chunks(opening: Opener, source: Source) -> Iterator[bytes]:
    """Open a file on the first read and yield its contents; any error is an UnreadableError."""
    try:
        stream = opening()
        while data := stream.read(_CHUNK_BYTES):
            yield data
    except GroundupError:
        raise
    except Exception as error:
        # For example a wrong checksum, an unknown compression method or a password.
        reason = str(error) or type(error).__name__
        raise UnreadableError(f"{source} cannot be read: {reason}") from error
