"""Remote files by fsspec: hf://, s3://, https:// and more; it is imported when one is named.

Each is known by its address. What is in them is read as from files on disk.
"""

import contextlib
import glob
import io
import re
from collections.abc import Iterator
from typing import IO, Any, cast

from groundup.errors import DataError, GroundupError, MissingExtraError

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?:::|://)")
_OF_THE_EXTRA = ("http", "hf")
_CHUNK_BYTES = 1 << 20


class RemoteFile(str):
    """The address of a remote file."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """What stands behind the last slash, without the query of an HTTP address."""
        path = self.split("?")[0] if self.startswith("http") else self
        return path.rsplit("/", 1)[-1]


def is_remote(text: str) -> bool:
    """Whether an input is the address of something remote."""
    return _ADDRESS.match(text) is not None


def find_remote(address: str) -> tuple[list[RemoteFile], bool]:
    """The files that an address names, sorted, and whether it is a folder or glob.

    address: of a file or a folder, or a glob.
    """
    with explained_remote_errors(address):
        system, path = _system_of(address)
        if system.isfile(path):
            return [RemoteFile(system.unstrip_protocol(path))], False
        if glob.has_magic(path):
            found = [match for match in system.glob(path) if system.isfile(match)]
        elif system.isdir(path):
            found = system.find(path)
        else:
            # For the reason, which the questions above keep to themselves.
            system.info(path)
            found = []
        return [RemoteFile(system.unstrip_protocol(name)) for name in sorted(found)], True


def open_remote(file: RemoteFile) -> IO[bytes]:
    """Open a remote file for reading."""
    system, path = _system_of(file)
    return cast(IO[bytes], io.BufferedReader(system.open(path, "rb"), _CHUNK_BYTES))


def remote_size(file: RemoteFile) -> int | None:
    """How many bytes the file has, or None where its server does not say."""
    system, path = _system_of(file)
    size = system.info(path).get("size")
    return None if size is None else int(size)


@contextlib.contextmanager
def explained_remote_errors(address: str, kind: type[DataError] = DataError) -> Iterator[None]:
    """Turn whatever a file system raises into an error that names the address.

    address: what is being looked at.
    kind: of the error.
    """
    try:
        yield
    except GroundupError:
        raise
    except FileNotFoundError as error:
        raise kind(f"{address} does not exist; check the name") from error
    except ImportError as error:
        if error.name == "fsspec" or address.startswith(_OF_THE_EXTRA):
            raise MissingExtraError(f"reading {address}", "remote") from error
        # fsspec's own words name the package for a kind of storage.
        raise kind(f"{address} cannot be read: {error}") from error
    except Exception as error:
        raise kind(f"{address} cannot be read: {error or type(error).__name__}") from error


def _system_of(address: str) -> tuple[Any, str]:
    import fsspec

    system, path = fsspec.core.url_to_fs(address)
    return system, path
