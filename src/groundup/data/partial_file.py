"""A file that is still arriving: `NAME.part`, and a note of which version its bytes belong to.

Both stay when a download stops, so that a later one can continue.
"""

import fcntl
import os
from pathlib import Path
from typing import IO

from groundup.errors import DataError
from groundup.files import parse_json, write_json_atomic


class PartialFile:
    """Bytes that have arrived so far for `destination`; one process at a time can have it open."""

    def __init__(self, destination: Path) -> None:
        self.path = destination.with_name(destination.name + ".part")
        self._note = destination.with_name(destination.name + ".part.json")
        self._destination = destination
        self._file: IO[bytes]

    def __enter__(self) -> "PartialFile":
        # Unbuffered: what is counted has been written, and a full disk shows at once.
        self._file = open(self.path, "ab", buffering=0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise DataError(f"{self.path} is being written by another download") from None
        return self

    def __exit__(self, *_: object) -> None:
        is_empty = self.size == 0
        self._file.close()
        if is_empty:
            self.discard()

    @property
    def size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def read_version(self) -> str | None:
        """Which version the bytes belong to; None when that is unknown."""
        try:
            version = parse_json(self._note.read_bytes())["version"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return version if isinstance(version, str) else None

    def start_over(self, version: str | None) -> None:
        """Forget the bytes; those to come belong to `version`."""
        self._file.truncate(0)
        write_json_atomic(self._note, {"version": version})

    def write(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view:
            view = view[self._file.write(view) :]

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)

    def finish(self) -> None:
        """Make the part the destination."""
        os.fsync(self._file.fileno())
        os.replace(self.path, self._destination)
        self._note.unlink(missing_ok=True)
