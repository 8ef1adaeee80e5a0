"""Fetching over real HTTP: resumed, retried, checked, and nothing half-written left in place."""

import dataclasses
import errno
import fcntl
import gzip
import hashlib
import http.server
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from groundup.cli.main import main
from groundup.data import corpora
from groundup.data.corpora import CORPORA, RemoteFile
from groundup.data.download import download_corpus, download_file
from groundup.errors import DataError

CONTENT = bytes(range(256)) * 400 + b"the end"
SHA256 = hashlib.sha256(CONTENT).hexdigest()

Fetch = Callable[..., None]


class Site:
    """A server with one behaviour: what it holds, and how it misbehaves."""

    def __init__(self) -> None:
        self.files = {"/corpus/file.txt": CONTENT}
        self.has_ranges = True
        self.cuts: list[int] = []
        self.statuses: list[int] = []
        self.requests: list[tuple[str, str | None]] = []
        self.url = ""


class Handler(http.server.BaseHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:
        site = self.site
        site.requests.append((self.path, self.headers.get("Range")))
        if site.statuses and (status := site.statuses.pop(0)) != 200:
            self.send_error(status)
            return
        content = site.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        begin = self._begin()
        if begin >= len(content) > 0 and begin > 0:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = content[begin:]
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if site.cuts:
            body = body[: site.cuts.pop(0)]
        self.wfile.write(body)
        self.close_connection = True

    def _begin(self) -> int:
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if not match or not self.site.has_ranges:
            return 0
        return int(match[1])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    handler = type("SiteHandler", (Handler,), {"site": site})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        site.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield site
        server.shutdown()
        thread.join()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.txt"


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def fetch(site: Site, path: Path, pauses: list[float]) -> Fetch:
    """Fetch the site's file to `path`, without waiting; keywords change what is recorded of it."""
    recorded: dict[str, Any] = {"num_bytes": len(CONTENT), "sha256": SHA256, "pause": pauses.append}
    return lambda **changes: download_file(
        f"{site.url}/corpus/file.txt", path, **recorded | changes
    )


def part_of(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def interrupted(path: Path, after: int) -> None:
    """Leave what a killed run leaves: the first bytes."""
    part_of(path).write_bytes(CONTENT[:after])


def test_a_file_arrives_whole_and_alone(
    path: Path, tmp_path: Path, fetch: Fetch, pauses: list[float]
) -> None:
    seen: list[tuple[int, int | None]] = []
    fetch(progress=lambda *it: seen.append(it))
    assert path.read_bytes() == CONTENT
    assert list(tmp_path.iterdir()) == [path]
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert pauses == []


@pytest.mark.parametrize(
    ("trouble", "asked"),
    [
        ({"cuts": [1000, 50_000]}, [None, "bytes=1000-", "bytes=51000-"]),
        ({"cuts": [1000], "has_ranges": False}, [None, "bytes=1000-"]),
        ({"statuses": [503, 429]}, [None, None, None]),
    ],
)
def test_cut_connections_and_busy_servers_are_tried_again(
    site: Site,
    path: Path,
    fetch: Fetch,
    pauses: list[float],
    trouble: dict[str, Any],
    asked: list[str | None],
) -> None:
    vars(site).update(trouble)
    fetch()
    assert path.read_bytes() == CONTENT
    assert [asked for _, asked in site.requests] == asked
    assert len(pauses) == len(asked) - 1


def test_a_stopped_run_goes_on_where_it_was(site: Site, path: Path, fetch: Fetch) -> None:
    interrupted(path, 4321)
    fetch()
    assert path.read_bytes() == CONTENT
    assert site.requests == [("/corpus/file.txt", "bytes=4321-")]


def test_a_run_stopped_before_the_rename_needs_no_byte_more(
    site: Site, path: Path, fetch: Fetch
) -> None:
    interrupted(path, len(CONTENT))
    fetch()
    assert path.read_bytes() == CONTENT
    assert site.requests == []


def test_a_part_of_another_file_is_not_spliced(path: Path, fetch: Fetch) -> None:
    part_of(path).write_bytes(b"of unknown origin")
    with pytest.raises(DataError, match="it was deleted, fetch it again"):
        fetch()
    assert not path.exists()
    fetch()
    assert path.read_bytes() == CONTENT


def test_a_server_that_always_cuts_is_given_up(
    site: Site, path: Path, fetch: Fetch, pauses: list[float]
) -> None:
    site.has_ranges = False
    site.cuts = [1000] * 20
    with pytest.raises(DataError, match=r"connection was cut, 6 times .* continue from byte 1000"):
        fetch()
    assert not path.exists()
    assert pauses == sorted(pauses) and pauses[-1] > pauses[0]


def test_a_missing_file_is_named_and_not_asked_for_again(
    site: Site, tmp_path: Path, fetch: Fetch
) -> None:
    site.files.clear()
    with pytest.raises(DataError, match=r"/corpus/file\.txt does not exist"):
        fetch()
    assert len(site.requests) == 1
    assert list(tmp_path.iterdir()) == []


def test_other_bytes_than_recorded_are_refused(site: Site, tmp_path: Path, fetch: Fetch) -> None:
    with pytest.raises(DataError, match=rf"has {len(CONTENT)} bytes, but 12 are recorded"):
        fetch(num_bytes=12)
    site.files["/corpus/file.txt"] = b"x" + CONTENT[1:]
    with pytest.raises(DataError, match=rf"hash sha256:\w+ and not the recorded sha256:{SHA256}"):
        fetch()
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_kept_if_right_and_never_touched(
    site: Site, path: Path, fetch: Fetch
) -> None:
    path.write_bytes(CONTENT)
    fetch()
    assert site.requests == []
    path.write_bytes(b"mine")
    with pytest.raises(DataError, match="delete it or choose another folder"):
        fetch()
    assert path.read_bytes() == b"mine"


def test_a_server_that_is_not_there_is_given_up_soon(
    path: Path, tmp_path: Path, pauses: list[float]
) -> None:
    with pytest.raises(DataError, match="cannot be fetched"):
        download_file("http://127.0.0.1:9/file.txt", path, 5, SHA256, pause=pauses.append)
    assert sum(pauses) < 5
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "url", ["file:///etc/hostname", "ftp://host/file", "nonsense", "http://[::1"]
)
def test_only_http_is_spoken(path: Path, url: str) -> None:
    with pytest.raises(DataError, match="not an http or https address"):
        download_file(url, path, 5, SHA256)


def test_a_full_disk_keeps_what_came(
    site: Site, path: Path, fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_until_full(done: int, total: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("groundup.data.download._CHUNK_BYTES", 500)
    with pytest.raises(DataError, match=r"no space on the disk for .*file\.txt\.part"):
        fetch(progress=write_until_full)
    fetch()
    assert path.read_bytes() == CONTENT
    assert site.requests[-1][1] == "bytes=500-"


def test_two_downloads_do_not_share_a_part(path: Path, fetch: Fetch) -> None:
    with open(part_of(path), "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another download"):
            fetch()


def packed_corpus(site: Site) -> tuple[RemoteFile, ...]:
    packed = gzip.compress(CONTENT)
    site.files["/corpus/words.txt.gz"] = packed
    sha256 = hashlib.sha256(packed).hexdigest()
    words = RemoteFile("corpus/words.txt.gz", len(packed), sha256, SHA256)
    return RemoteFile("corpus/file.txt", len(CONTENT), SHA256), words


def test_a_corpus_is_fetched_and_unpacked_once(site: Site, tmp_path: Path) -> None:
    corpus = packed_corpus(site)
    seen: list[tuple[int, int | None]] = []
    for _ in range(2):
        paths = download_corpus(
            corpus,
            tmp_path / "in" / "here",
            base_url=site.url,
            unpack=True,
            progress=lambda *it: seen.append(it),
        )
    assert [path.name for path in paths] == ["file.txt", "words.txt"]
    assert [path.read_bytes() for path in paths] == [CONTENT, CONTENT]
    assert {path.name for path in paths[0].parent.iterdir()} == {"file.txt", "words.txt"}
    assert len(site.requests) == 2
    done = [done for done, _ in seen]
    assert done == sorted(done)
    assert seen[-1][0] == seen[-1][1] == sum(file.num_bytes for file in corpus)


def test_packed_files_stay_packed_unless_asked(site: Site, tmp_path: Path) -> None:
    paths = download_corpus(packed_corpus(site), tmp_path, base_url=site.url)
    assert [path.name for path in paths] == ["file.txt", "words.txt.gz"]


def test_what_unpacks_to_other_bytes_is_refused(site: Site, tmp_path: Path) -> None:
    _, words = packed_corpus(site)
    corpus = [dataclasses.replace(words, unpacked_sha256="0" * 64)]
    with pytest.raises(DataError, match="unpacks to other bytes than recorded"):
        download_corpus(corpus, tmp_path, base_url=site.url, unpack=True)
    assert [path.name for path in tmp_path.iterdir()] == ["words.txt.gz"]


def test_recorded_hashes_look_like_hashes() -> None:
    for corpus in CORPORA.values():
        for file in corpus:
            assert file.num_bytes > 0
            for sha256 in (file.sha256, file.unpacked_sha256):
                assert sha256 is None or re.fullmatch(r"[0-9a-f]{64}", sha256)


def test_the_command_fetches_a_corpus(
    site: Site,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(corpora.CORPORA, "tinystories", packed_corpus(site))
    out = tmp_path / "corpora"
    argv = ["data", "download", "tinystories", "--out", str(out), "--base-url", site.url]
    assert main([*argv, "--unpack"]) == 0
    assert str(out / "words.txt") in capsys.readouterr().out
    assert (out / "words.txt").read_bytes() == CONTENT


def test_the_command_says_in_one_line_what_is_missing(
    site: Site,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(corpora.CORPORA, "openwebtext", (RemoteFile("nowhere.txt", 5, SHA256),))
    argv = ["data", "download", "openwebtext", "--out", str(tmp_path), "--base-url", site.url]
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert "nowhere.txt does not exist" in error


def test_the_command_knows_only_its_corpora(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "download", "everything"]) == 2
    assert "tinystories" in capsys.readouterr().err
