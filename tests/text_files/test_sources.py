"""Resolving inputs to files: folders, globs, names, and inputs without files."""

import os
from pathlib import Path

import pytest

from groundup.errors import ConfigError, DataError
from groundup.text_files import Reading, check_not_input, find_sources


def find(*inputs: str | Path) -> list[Path]:
    return [Path(source) for source in find_sources(inputs)]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    kept = "a.jsonl.gz b.txt b2.Md code/main.rs.xz sub/c.parquet sub/d.TXT.zst"
    for name in (*reversed(kept.split()), "notes.png", ".hidden.txt"):
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (tmp_path / "tree" / "sub" / "loop").symlink_to(tmp_path / "tree")
    return tmp_path / "tree"


def test_the_text_files_of_a_folder_are_sorted(
    tree: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["a.jsonl.gz", "b.txt", "b2.Md", "code/main.rs.xz", "sub/c.parquet", "sub/d.TXT.zst"]
    assert find(tree) == [tree / name for name in names]
    # Skipped files are logged.
    assert "skipped" in caplog.text and "notes.png" in caplog.text
    assert find(str(tree)) == find(tree)


@pytest.mark.parametrize("names", [("config.yaml", "metrics.jsonl"), ("model.safetensors",)])
def test_models_and_runs_in_a_folder_are_skipped(
    tree: Path, names: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    expected = find(tree)
    folder = tree / "made" / "here"
    for name in (*names, "README.md", "deeper/log.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    assert find(tree) == expected
    assert f"{folder}" in caplog.text
    # Named explicitly, it is read.
    assert folder / "README.md" in find(folder)


def test_the_matches_of_a_glob_are_sorted(tree: Path) -> None:
    assert find(f"{tree}/*.txt") == [tree / "b.txt"]
    assert find(f"{tree}/sub/[cd].*") == [tree / "sub/c.parquet", tree / "sub/d.TXT.zst"]
    assert tree / "sub/c.parquet" in find(f"{tree}/**/*.parquet")
    assert tree / "sub/c.parquet" in find(f"{tree}/s*")


def test_a_file_may_be_named_like_a_glob_or_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (Path("odd[1].txt"), Path("std::vector.csv")):
        path.write_text("x")
        assert find(path) == find(".") == [path]
        path.unlink()


def test_a_file_named_twice_is_read_once(tree: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tree.parent / "link.txt").symlink_to(tree / "b.txt")
    inputs = [tree / "b.txt", tree / "b.txt", tree.parent / "link.txt"]
    assert find(*inputs) == [tree / "b.txt"]
    assert "named twice" in caplog.text


@pytest.mark.parametrize(
    ("names", "noun"),
    [
        (["gone.txt"], r"gone\.txt does not exist"),
        (["link.txt"], r"link\.txt cannot be read: No such file"),
        (["*.gone"], r"no file matches \*\.gone"),
        (["empty"], "empty has no text files"),
        ([""], "an input is an empty string"),
        ([], "no input"),
    ],
)
def test_inputs_without_files_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], noun: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("link.txt").symlink_to("gone.txt")
    with pytest.raises(DataError, match=noun):
        find_sources(names)


def test_files_that_are_not_text_are_skipped_unless_named(
    tree: Path, caplog: pytest.LogCaptureFixture
) -> None:
    regular = find(tree)
    (tree / "none.txt").touch()
    os.mkfifo(tree / "pipe.txt")
    (tree / "sub" / "gone.txt").symlink_to(tree / "nowhere.txt")
    (tree / "self.txt").symlink_to(tree / "self.txt")
    (tree / "unknown.suffix").symlink_to(tree / "nowhere")
    assert find(tree) == regular
    assert f"skipped (empty): {tree / 'none.txt'}" in caplog.text
    assert f"skipped (not a regular file): {tree / 'pipe.txt'}" in caplog.text
    assert find(f"{tree}/*.txt") == [tree / "b.txt"]
    for name in ("none.txt", "pipe.txt"):
        assert find(tree / name) == [tree / name]
        with pytest.raises(DataError, match="has no text files"):
            find(f"{tree}/{name[0]}*.txt")


def test_unreadable_subfolders_are_skipped(
    tree: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    scandir, closed = os.scandir, [str(tree / "code")]

    def refuse(path: str) -> object:
        if path in closed:
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert tree / "b.txt" in find(tree) and tree / "code/main.rs.xz" not in find(tree)
    assert f"skipped (cannot be read: Permission denied): {closed[0]}" in caplog.text
    closed.append(str(tree))
    with pytest.raises(DataError, match=f"folder {tree} cannot be read"):
        find(tree)


def test_links_out_of_a_folder_are_followed_only_on_request(
    tree: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    regular, secret = find(tree), tmp_path / "shadow.txt"
    secret.write_text("hidden")
    (tree / "shadow.txt").symlink_to(secret)
    (tree / "inside.txt").symlink_to(tree / "b.txt")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "o.txt").write_text("hidden too")
    (tmp_path / "other" / "again").symlink_to(tmp_path / "other")
    (tree / "link").symlink_to(tmp_path / "other")
    assert find(tree) == regular
    assert find(f"{tree}/*") == find(f"{tree}/**") == sorted([*regular, tree / "notes.png"])
    assert find(f"{tree}/**/*.txt") == find(f"{tree}/*.txt") == [tree / "b.txt"]
    assert f"--follow-links): {tree / 'link'}, {tree / 'shadow.txt'}" in caplog.text
    followed = sorted([*regular, tree / "shadow.txt"])
    followed.append(tree / "link" / "o.txt")
    assert [Path(one) for one in find_sources([tree], Reading(follow_links=True))] == followed
    for name in ("link", "shadow.txt"):
        (tree / name).unlink()
    (tree / "zero.txt").symlink_to("/dev/zero")
    assert [Path(one) for one in find_sources([tree], Reading(follow_links=True))] == regular


@pytest.mark.parametrize("name", ["errors", "encoding"])
@pytest.mark.parametrize("value", ["no-such-thing", "base64"])
def test_a_misspelled_option_raises(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is '{value}'"):
        Reading(**{name: value})  # type: ignore[arg-type]


def test_the_output_must_not_be_an_input(tree: Path) -> None:
    with pytest.raises(ConfigError, match="one of the inputs"):
        check_not_input(tree / "sub" / ".." / "b.txt", find_sources([tree]))
