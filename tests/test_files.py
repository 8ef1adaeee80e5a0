"""Atomic writes under faults, JSON lines after crashes, hashes, and removal of leftovers."""

import errno
import hashlib
import itertools
import json
import logging
import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from groundup import disk, files
from groundup.errors import DataError


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def failing_with(code: int) -> Mock:
    return Mock(side_effect=OSError(code, os.strerror(code)))


@pytest.mark.parametrize("function", ["open", "fsync", "replace", "write"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_failed_writes_keep_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, code: int
) -> None:
    target = tmp_path / "file.txt"
    target.write_text("old")
    with pytest.raises(KeyboardInterrupt), files.atomic_path(target) as temporary:
        temporary.write_text("half of the n")
        raise KeyboardInterrupt
    monkeypatch.setattr(os, function, failing_with(code))
    with pytest.raises(OSError) as caught:
        files.write_text_atomic(target, "new")
    assert caught.value.errno == code
    # An error before the rename names the destination.
    assert function not in ("open", "write") or caught.value.filename == str(target)
    assert target.read_text() == "old"
    assert listing(tmp_path) == ["file.txt"]


def test_folders_in_the_way_raise_and_devices_are_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(IsADirectoryError):
        files.write_text_atomic(tmp_path, "x")
    (tmp_path / "file").write_text("old")
    with pytest.raises((NotADirectoryError, FileExistsError)):
        files.write_text_atomic(tmp_path / "file" / "inner", "x")
    assert listing(tmp_path) == ["file"]
    # Some file systems cannot sync folders; that is not an error.
    monkeypatch.setattr(os, "fsync", failing_with(errno.EINVAL))
    files.write_bytes_atomic(tmp_path / "file", b"more")
    assert (tmp_path / "file").read_bytes() == b"more"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(pipe.read_bytes)
        files.write_bytes_atomic(pipe, b"data")
    assert received.result() == b"data"
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_atomic_writes_keep_mode_name_and_link(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        files.write_text_atomic(tmp_path / "real", "old")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "real").stat().st_mode) == 0o640
    (tmp_path / "link").symlink_to("real")
    files.write_text_atomic(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "new"
    files.write_text_atomic(tmp_path / ("ü" * 127), "x")
    assert files.hash_file(tmp_path / "real") == files.hash_bytes(b"new")
    assert files.hash_bytes(b"new") == "sha256:" + hashlib.sha256(b"new").hexdigest()


def test_text_and_json_are_utf8_without_newline_translation(tmp_path: Path) -> None:
    files.write_text_atomic(tmp_path / "text", "ä\r\n")
    assert (tmp_path / "text").read_bytes() == "ä\r\n".encode()
    files.write_json_atomic(tmp_path / "json", {"b": "é", "a": [1, 2.5, None]})
    raw = (tmp_path / "json").read_text(encoding="utf-8")
    assert raw.endswith("}\n") and "é" in raw
    assert list(json.loads(raw)) == ["b", "a"]
    with pytest.raises(ValueError, match="JSON compliant"):
        files.write_json_atomic(tmp_path / "json", {"loss": float("nan")})
    values = {"loss": float("nan"), "norms": [float("inf"), 1.0], "in": {"x": -float("inf")}}
    unusual = {"": "a\n\r\u2028\x85é", "b": [-(2**70), 0.1, True]}
    for value in (values, {}, unusual):
        files.append_json_line(tmp_path / "lines", value)
    expected = {"loss": None, "norms": [None, 1.0], "in": {"x": None}}
    assert list(files.read_json_lines(tmp_path / "lines")) == [expected, {}, unusual]


def test_new_folders_are_synced_with_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr("groundup.disk.sync", lambda path: synced.append(Path(path).name))
    with files.atomic_folder(tmp_path / "new") as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "file").write_text("x")
    assert synced == ["file", "deep", folder.name, tmp_path.name]
    # The old folder is moved aside, the new one cannot take its place, and the old one returns.
    moves: Any = iter([os.rename, failing_with(errno.EIO), os.rename])
    monkeypatch.setattr("groundup.disk.rename", lambda *paths: next(moves)(*paths))
    with pytest.raises(OSError, match="Input/output"), files.atomic_folder(tmp_path / "new"):
        pass
    assert (tmp_path / "new" / "deep" / "file").read_text() == "x"


def test_discarded_folders_stay_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old" / "deep").mkdir(parents=True)
    synced: list[int] = []
    monkeypatch.setattr("groundup.disk.sync", lambda path: synced.append(len(os.listdir(path))))
    files.discard_folder(tmp_path / "old")
    assert synced == [1, 0]


WRITER_THAT_HANGS = """
import sys, time
from groundup.files import atomic_path
with atomic_path(sys.argv[1]) as temporary:
    temporary.write_text("half")
    print("writing", flush=True)
    time.sleep(60)
"""


def test_kills_keep_the_old_content_and_leftovers_are_removed(tmp_path: Path) -> None:
    target, other = tmp_path / "a[1].txt", tmp_path / ".b.txt.writing-0123456789ab"
    other.write_text("half")
    target.write_text("old")
    command = [sys.executable, "-c", WRITER_THAT_HANGS, str(target)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == b"writing\n"
        files.remove_leftovers(tmp_path, target.name)
        assert len(listing(tmp_path)) == 3
        writer.send_signal(signal.SIGKILL)
    assert target.read_text() == "old"
    files.write_text_atomic(target, "new")
    assert listing(tmp_path) == [other.name, target.name]
    files.remove_leftovers(tmp_path)
    assert listing(tmp_path) == [target.name]


def test_files_of_others_do_not_block_and_links_are_not_followed(tmp_path: Path) -> None:
    folder, precious = tmp_path / "folder", tmp_path / "precious"
    folder.mkdir()
    files.write_text_atomic(precious / "file", "kept")
    os.mkfifo(folder / ".a.writing-0123456789ab")
    (folder / ".b.writing-0123456789ab").symlink_to(precious)
    (folder / "step").symlink_to(precious)
    files.discard_folder(folder / "step")
    files.take_over(folder)
    assert listing(folder) == []
    for make in (os.mkfifo, lambda path: path.symlink_to(precious / "file")):
        make(folder / "lines")
        with pytest.raises(OSError):
            disk.open_stream(folder / "lines", append=True)
        with pytest.raises(DataError, match="lines is a link"):
            files.take_over(folder)
        (folder / "lines").unlink()
    assert (precious / "file").read_text() == "kept"


@pytest.mark.parametrize("cut", [1, 2, 8, 14])
def test_an_incomplete_last_line_is_dropped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, cut: int
) -> None:
    path = tmp_path / "metrics.jsonl"
    files.append_json_line(path, {"step": 1})
    whole = path.read_bytes()
    torn = b'{"step": 2222}\n'[:-cut]
    path.write_bytes(whole + torn)
    with caplog.at_level(logging.WARNING):
        values = list(files.read_json_lines(path))
    only_its_line_end_is_missing = cut == 1
    expected = [{"step": 1}, {"step": 2222}] if only_its_line_end_is_missing else [{"step": 1}]
    assert values == expected
    assert ("incomplete last line 2" in caplog.text) == (not only_its_line_end_is_missing)
    files.append_json_line(path, {"step": 3})
    assert list(files.read_json_lines(path)) == [*expected, {"step": 3}]


def test_a_damaged_line_in_the_middle_raises(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"a": 1}\n\n[1, 2]\n{"a": 2}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl line 3 .*\[1, 2\]"):
        list(files.read_json_lines(path))


def test_a_full_disk_while_appending_keeps_complete_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.jsonl"
    files.append_json_line(path, {"step": 1})
    real_write = os.write
    calls: list[int] = []

    def write_some_then_fail(file: int, data: Any) -> int:
        calls.append(len(data))
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real_write(file, data[:5])

    monkeypatch.setattr(os, "write", write_some_then_fail)
    with pytest.raises(OSError, match="No space"):
        files.append_json_line(path, {"step": 2})
    assert path.read_text() == '{"step": 1}\n'


def test_locks_are_exclusive(tmp_path: Path) -> None:
    with files.locked(tmp_path) as is_first:
        assert is_first
        # The failed attempt has not released the holder's lock.
        for _ in range(2):
            with files.locked(tmp_path) as is_another:
                assert not is_another
    with files.locked(tmp_path) as is_free:
        assert is_free


def test_deeply_nested_json_raises_value_error() -> None:
    for depth, (opening, closing) in itertools.product((150, 990, 100_000), ("[]", ('{"a":', "}"))):
        with pytest.raises(ValueError, match=r"nested too deep|Expecting value"):
            files.parse_json(opening * depth + closing * depth)
    assert files.parse_json("[" * 50 + "]" * 50)
