"""Archives, zip and tar: their files are read one after another, and written nowhere."""

import functools
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from typing import IO, Any

from groundup.errors import GroundupError
from groundup.text_files.documents import Source, UnreadableError
from groundup.text_files.opening import stream_of

# More is a bomb, or needs to be unpacked by whoever knows what it is.
_MOST_MEMBERS = 1_000_000
_LEAST_LIMIT_BYTES, _MOST_RATIO = 1 << 30, 100
_MOST_LIST_BYTES, _MOST_HEADER_BYTES = 64 << 20, 1 << 20
_CHUNK_BYTES = 1 << 18


class LimitError(UnreadableError):
    """An archive that unpacks to more than anyone packs text."""


def open_members(stream: IO[bytes], source: Source) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield name and content of an archive's regular files, each to be read before the next."""
    meter = _Meter(source)
    is_zip = source.path.lower().endswith(".zip")
    members = _zip(stream, meter) if is_zip else _tar(stream, meter)
    try:
        for number, member in enumerate(members):
            if number == _MOST_MEMBERS:
                raise LimitError(f"{source} has more than {_MOST_MEMBERS:,} files; unpack it")
            yield member
    except (tarfile.TarError, zipfile.BadZipFile, NotImplementedError) as error:
        raise UnreadableError(f"{source} cannot be read: {error}") from error


def _zip(stream: IO[bytes], meter: "_Meter") -> Iterator[tuple[str, IO[bytes]]]:
    archive = zipfile.ZipFile(_Bounded(stream))
    for info in archive.infolist():
        if not info.is_dir():
            yield info.filename, meter.measure(functools.partial(archive.open, info))


def _tar(stream: IO[bytes], meter: "_Meter") -> Iterator[tuple[str, IO[bytes]]]:
    whole = meter.measure(lambda: stream)
    with tarfile.open(fileobj=whole, mode="r|", tarinfo=_TarInfo) as archive:
        for member in archive:
            # It would keep them all.
            archive.members = []  # type: ignore[attr-defined]
            if member.isreg() and not member.issparse():
                opening = functools.partial(archive.extractfile, member)
                yield member.name, meter.measure(opening, is_counted=False)


class _Meter:
    """Counts what comes out of an archive, all files together."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._left = self._most = max(_LEAST_LIMIT_BYTES, _MOST_RATIO * (source.size or 0))

    def measure(self, opening: Callable[[], Any], is_counted: bool = True) -> IO[bytes]:
        """What is opened once it is read; whatever is wrong with it is an error of this package."""
        return stream_of(self._chunks(opening, is_counted))

    def _chunks(self, opening: Callable[[], Any], is_counted: bool) -> Iterator[bytes]:
        try:
            stream = opening()
            while data := stream.read(_CHUNK_BYTES):
                self._left -= len(data) if is_counted else 0
                if self._left < 0:
                    raise LimitError(f"{self._source} unpacks to more than {self._most:,} bytes")
                yield data
        except GroundupError:
            raise
        except Exception as error:
            # A wrong checksum, an unknown packing, a password.
            reason = str(error) or type(error).__name__
            raise UnreadableError(f"{self._source} cannot be read: {reason}") from error


class _Bounded:
    """A file of which the list of an archive's files, read at once, may not be without bounds."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.seek, self.tell, self.seekable = stream.seek, stream.tell, stream.seekable

    def read(self, size: int = -1) -> bytes:
        if size > _MOST_LIST_BYTES:
            raise zipfile.BadZipFile(f"its list of files has {size:,} bytes")
        return self._stream.read(size)


class _TarInfo(tarfile.TarInfo):
    @classmethod
    def frombuf(cls, *arguments: Any) -> "_TarInfo":
        found = super().frombuf(*arguments)
        if not found.isreg() and found.size > _MOST_HEADER_BYTES:
            raise tarfile.ReadError(f"a header has {found.size:,} bytes")
        return found
