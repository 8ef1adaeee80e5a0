"""Fetching files over HTTP: cut connections are taken up again, and what arrives is checked.

Bytes go to a part beside the destination, which is renamed once length and hash are right. Which
files there are is in `corpora`.
"""

import contextlib
import errno
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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from groundup.data.corpora import HUB, RemoteFile
from groundup.data.partial_file import PartialFile
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

    files: what to fetch. folder: where to. Returns the paths of the files.
    base_url: the server.
    unpack: replace `.gz` files by what they hold.
    progress: called with the bytes that came so far and of how many.
    pause: called with the seconds to wait before another try.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    sizes = [file.num_bytes for file in files]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    paths = []
    done = 0
    for file in files:
        report = _shifted(progress, done, total)
        packed = folder / file.name
        target = packed.with_suffix("") if unpack and packed.suffix == ".gz" else packed
        if target == packed or not _is_there(target, file.unpacked_bytes, file.unpacked_sha256):
            url = f"{base_url.rstrip('/')}/{urllib.parse.quote(file.path)}"
            download_file(url, packed, file.num_bytes, file.sha256, progress=report, pause=pause)
            if target != packed:
                _unpack(packed, target, file)
        paths.append(target)
        done += file.num_bytes or 0
    return paths


def download_file(
    url: str,
    path: str | os.PathLike[str],
    num_bytes: int | None = None,
    sha256: str | None = None,
    *,
    progress: Progress | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Fetch `url` into `path`, which appears complete or not at all.

    A stopped download continues where it was if the file on the server is still the same. Cut
    connections and busy servers are tried again after a pause that doubles.

    num_bytes, sha256: what the file must have, where that is known.
    progress, pause: see `download_corpus`.
    """
    if not re.match(r"https?://", url):
        raise DataError(f"{url} is not an http or https address")
    path = Path(path)
    if _is_there(path, num_bytes, sha256):
        return
    with PartialFile(path) as part:
        _fetch(url, part, num_bytes, progress, pause)
        _check_content(url, part, num_bytes, sha256)
        part.finish()


class _Answer(NamedTuple):
    """What the server sends: the missing bytes, and how many the file has, where it says so."""

    body: http.client.HTTPResponse
    total: int | None


def _fetch(
    url: str,
    part: PartialFile,
    num_bytes: int | None,
    progress: Progress | None,
    pause: Callable[[float], None],
) -> None:
    idle_attempts = 0
    while part.size != num_bytes:
        size_before = part.size
        try:
            with _request(url, part) as answer:
                if answer is None:
                    return
                if num_bytes is not None and answer.total not in (None, num_bytes):
                    raise DataError(
                        f"{url} has {answer.total} bytes, but {num_bytes} are recorded: "
                        f"the file there is another one now"
                    )
                if _receive(answer, part, num_bytes, progress):
                    return
            problem = "the connection was cut"
        except urllib.error.HTTPError as error:
            if error.code not in _PASSING_STATUSES:
                raise DataError(_explain_status(url, error.code)) from None
            problem = f"the server answered {error.code}"
        except (OSError, http.client.HTTPException) as error:
            _check_disk(error, part)
            problem = str(getattr(error, "reason", None) or error) or type(error).__name__
        idle_attempts = 0 if part.size > size_before else idle_attempts + 1
        if idle_attempts >= (_MAX_IDLE_ATTEMPTS if part.size else _MAX_FIRST_ATTEMPTS):
            raise DataError(
                f"{url} cannot be fetched: {problem}, {idle_attempts} times in a row; "
                f"run the same command again to continue from byte {part.size}"
            )
        pause(2.0 ** max(0, idle_attempts - 1))


@contextlib.contextmanager
def _request(url: str, part: PartialFile) -> Iterator[_Answer | None]:
    """Ask for what is missing; None: nothing is."""
    headers = {"Accept-Encoding": "identity", "User-Agent": "groundup"}
    known_version = part.read_version()
    if part.size and known_version:
        headers |= {"Range": f"bytes={part.size}-", "If-Range": known_version}
    try:
        body = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=_TIMEOUT_SECONDS
        )
    except urllib.error.HTTPError as error:
        with error:
            if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise
            if error.headers.get("Content-Range") != f"bytes */{part.size}":
                part.start_over(None)
                raise ConnectionError("the part is longer than the file") from None
        yield None
        return
    with body:
        if body.status == http.HTTPStatus.PARTIAL_CONTENT:
            sent = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", body.headers.get("Content-Range", ""))
            if sent and int(sent[1]) == part.size:
                total = None if sent[2] == "*" else int(sent[2])
                yield _Answer(body, total)
                return
            part.start_over(None)
            raise ConnectionError("the server sent another range than the one asked for")
        length = body.headers.get("Content-Length")
        part.start_over(_version_of(body))
        yield _Answer(body, int(length) if length else None)


def _version_of(body: http.client.HTTPResponse) -> str | None:
    """What names the version of a file to `If-Range`: a weak tag may not."""
    tag = body.headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else body.headers.get("Last-Modified")


def _receive(
    answer: _Answer, part: PartialFile, num_bytes: int | None, progress: Progress | None
) -> bool:
    """Take what comes; True when the file is complete."""
    total = answer.total if answer.total is not None else num_bytes
    while chunk := answer.body.read(_CHUNK_BYTES):
        part.write(chunk)
        if progress is not None:
            progress(part.size, total)
    return total is None or part.size >= total


def _check_content(url: str, part: PartialFile, num_bytes: int | None, sha256: str | None) -> None:
    problem = None
    if num_bytes is not None and part.size != num_bytes:
        problem = f"has {part.size} bytes and not the {num_bytes} recorded"
    elif sha256 is not None and (found := hash_file(part.path)) != f"sha256:{sha256}":
        problem = f"has the hash {found} and not the recorded sha256:{sha256}"
    if problem:
        part.discard()
        raise DataError(f"what {url} sent {problem}; it was deleted, fetch it again")


def _is_there(path: Path, num_bytes: int | None, sha256: str | None) -> bool:
    """Whether the finished file exists; one that exists and is wrong is an error."""
    if not path.exists():
        return False
    size = path.stat().st_size
    is_right = (num_bytes is None or size == num_bytes) and (
        sha256 is None or hash_file(path) == f"sha256:{sha256}"
    )
    if not is_right:
        raise DataError(
            f"{path} exists, but is not the file to fetch (its {size} bytes or their hash are "
            f"others); delete it or choose another folder"
        )
    return True


def _unpack(packed: Path, target: Path, file: RemoteFile) -> None:
    digest = hashlib.sha256()
    size = 0
    try:
        with (
            atomic_path(target) as temporary,
            gzip.open(packed) as source,
            open(temporary, "wb") as sink,
        ):
            while chunk := source.read(_CHUNK_BYTES):
                sink.write(chunk)
                digest.update(chunk)
                size += len(chunk)
            if file.unpacked_bytes not in (None, size) or file.unpacked_sha256 not in (
                None,
                digest.hexdigest(),
            ):
                raise DataError(f"{packed} unpacks to other bytes than recorded; delete it")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{packed} cannot be unpacked ({error}); delete it") from error
    packed.unlink()


def _check_disk(error: OSError | http.client.HTTPException, part: PartialFile) -> None:
    """Errors of the disk are not errors of the connection: trying again does not help."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        raise DataError(
            f"no space on the disk for {part.path} ({error.strerror}); free some and run the same "
            f"command again to continue"
        ) from error
    if isinstance(error, OSError) and error.filename is not None:
        raise error


def _explain_status(url: str, status: int) -> str:
    reason = {
        401: "asks for a login",
        403: "is not open to everyone",
        404: "does not exist",
        410: "does not exist any more",
    }.get(status, f"cannot be fetched: the server answered {status}")
    return f"{url} {reason}; look whether the corpus has moved"


def _shifted(progress: Progress | None, begin: int, total: int | None) -> Progress | None:
    if progress is None:
        return None
    return lambda done, _: progress(begin + done, total)
