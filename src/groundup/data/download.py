"""Fetching files over HTTP: cut connections are taken up again, and what arrives is checked.

Bytes go to a part beside the destination, which is renamed once its hash is right. Which files
there are is in `corpora`.
"""

import errno
import fcntl
import gzip
import hashlib
import http.client
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from groundup.data.corpora import HUB, RemoteFile
from groundup.errors import DataError
from groundup.files import atomic_path, hash_file
from groundup.runtime import Progress

_CHUNK_BYTES = 1 << 20
_TIMEOUT_SECONDS = 60.0
# A server that has sent something is worth more patience than one that never answered.
_MAX_IDLE_ATTEMPTS = 6
_MAX_FIRST_ATTEMPTS = 3
_PASSING_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})


def download_corpus(
    files: Sequence[RemoteFile],
    folder: str | os.PathLike[str],
    *,
    base_url: str = HUB,
    unpack: bool = False,
    progress: Progress | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> list[Path]:
    """Fetch all files of a corpus into `folder`; files already there and right are kept.

    files: what to fetch.
    folder: where to. Returns the paths of the files.
    base_url: the server.
    unpack: replace `.gz` files by what they hold.
    progress: called with the bytes that came so far and of how many.
    pause: called with the seconds to wait before another try.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    total = sum(file.num_bytes for file in files)
    paths = []
    done = 0
    for file in files:

        def report(arrived: int, _: int | None, before: int = done) -> None:
            if progress is not None:
                progress(before + arrived, total)

        packed = folder / file.name
        target = packed.with_suffix("") if unpack and packed.suffix == ".gz" else packed
        if target == packed or not _is_there(target, file.unpacked_sha256):
            url = f"{base_url.rstrip('/')}/{urllib.parse.quote(file.path)}"
            download_file(url, packed, file.num_bytes, file.sha256, progress=report, pause=pause)
            if target != packed:
                _unpack(packed, target, file)
        paths.append(target)
        done += file.num_bytes
    return paths


def download_file(
    url: str,
    path: str | os.PathLike[str],
    num_bytes: int,
    sha256: str,
    *,
    progress: Progress | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Fetch `url` into `path`, which appears complete or not at all.

    A stopped download continues where it was. Cut connections and busy servers are tried again
    after a pause that doubles.

    num_bytes, sha256: what the file must have.
    progress, pause: see `download_corpus`.
    """
    try:
        scheme = urllib.parse.urlsplit(url).scheme
    except ValueError:
        scheme = None
    if scheme not in ("http", "https"):
        raise DataError(f"{url} is not an http or https address")
    path = Path(path)
    if _is_there(path, sha256):
        return
    part = path.with_name(path.name + ".part")
    # Unbuffered: what is counted has been written, and a full disk shows at once.
    with open(part, "ab", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DataError(f"{part} is being written by another download") from None
        try:
            _fetch(url, file, num_bytes, progress, pause)
        except BaseException:
            if not file.tell():
                part.unlink()
            raise
        if (found := hash_file(part)) != f"sha256:{sha256}":
            part.unlink()
            raise DataError(
                f"what {url} sent has the hash {found} and not the recorded sha256:{sha256}; it "
                f"was deleted, fetch it again"
            )
        os.fsync(file.fileno())
        os.replace(part, path)


def _fetch(
    url: str,
    file: IO[bytes],
    num_bytes: int,
    progress: Progress | None,
    pause: Callable[[float], None],
) -> None:
    idle_attempts = 0
    while (before := file.tell()) < num_bytes:
        try:
            _receive(url, file, num_bytes, progress)
            problem = "the connection was cut"
        except urllib.error.HTTPError as error:
            with error:
                if error.code not in _PASSING_STATUSES:
                    raise DataError(_explain_status(url, error.code)) from None
                problem = f"the server answered {error.code}"
        except (OSError, http.client.HTTPException) as error:
            _check_disk(error, file)
            problem = str(getattr(error, "reason", None) or error) or type(error).__name__
        size = file.tell()
        if size >= num_bytes:
            return
        idle_attempts = 0 if size > before else idle_attempts + 1
        if idle_attempts >= (_MAX_IDLE_ATTEMPTS if size else _MAX_FIRST_ATTEMPTS):
            raise DataError(
                f"{url} cannot be fetched: {problem}, {idle_attempts} times in a row; "
                f"run the same command again to continue from byte {size}"
            )
        pause(2.0 ** max(0, idle_attempts - 1))


def _receive(url: str, file: IO[bytes], num_bytes: int, progress: Progress | None) -> None:
    """Ask for what is missing and take what comes."""
    begin = file.tell()
    headers = {"Accept-Encoding": "identity", "User-Agent": "groundup"}
    if begin:
        headers["Range"] = f"bytes={begin}-"
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as body:
        sent = re.match(r"bytes (\d+)-\d+/(\d+)", body.headers.get("Content-Range", ""))
        if sent is None or int(sent[1]) != begin:
            if body.status == http.HTTPStatus.PARTIAL_CONTENT:
                raise ConnectionError("the server sent another range than the one asked for")
            file.seek(0)
            file.truncate()
        total = sent[2] if sent else body.headers.get("Content-Length")
        if total is not None and int(total) != num_bytes:
            raise DataError(
                f"{url} has {total} bytes, but {num_bytes} are recorded: the file there is another "
                f"one now"
            )
        while chunk := body.read(_CHUNK_BYTES):
            view = memoryview(chunk)
            while view:
                view = view[file.write(view) :]
            if progress is not None:
                progress(file.tell(), num_bytes)


def _is_there(path: Path, sha256: str | None) -> bool:
    """Whether the finished file exists; one that exists and is wrong is an error."""
    if not path.exists():
        return False
    if sha256 is not None and hash_file(path) != f"sha256:{sha256}":
        raise DataError(
            f"{path} exists, but is not the file to fetch (its hash is another); delete it or "
            f"choose another folder"
        )
    return True


def _unpack(packed: Path, target: Path, file: RemoteFile) -> None:
    digest = hashlib.sha256()
    try:
        with (
            atomic_path(target) as temporary,
            gzip.open(packed) as source,
            open(temporary, "wb") as sink,
        ):
            while chunk := source.read(_CHUNK_BYTES):
                sink.write(chunk)
                digest.update(chunk)
            if file.unpacked_sha256 not in (None, digest.hexdigest()):
                raise DataError(f"{packed} unpacks to other bytes than recorded; delete it")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{packed} cannot be unpacked ({error}); delete it") from error
    packed.unlink()


def _check_disk(error: OSError | http.client.HTTPException, file: IO[bytes]) -> None:
    """Errors of the disk are not errors of the connection: trying again does not help."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        raise DataError(
            f"no space on the disk for {file.name} ({error.strerror}); free some and run the same "
            f"command again to continue"
        ) from error


def _explain_status(url: str, status: int) -> str:
    reason = {
        401: "asks for a login",
        403: "is not open to everyone",
        404: "does not exist",
        410: "does not exist any more",
        416: "is shorter than recorded",
    }.get(status, f"cannot be fetched: the server answered {status}")
    return f"{url} {reason}; look whether the corpus has moved"
