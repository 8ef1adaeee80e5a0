"""The data verbs as typed: what they print and leave."""

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from groundup.cli.main import main
from groundup.data.samples import write_stories
from groundup.data.shards import open_shards
from groundup.tokenizer import Tokenizer

END = "<|endoftext|>"
STORY = "The old fox walked down to the river at night and saw the moon in the water there. "


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a text and a tokenizer."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text(END.join(f"{STORY}{number} 日本" for number in range(500)))
    Tokenizer({id: bytes([id]) for id in range(256)}, [], [END]).save("tokenizer.json")
    return tmp_path


def test_stories_and_dialogues_are_written(shell: Any) -> None:
    told = shell("data", "sample", "--megabytes", "0.2", "--seed", "4")
    stories = list(write_stories(200_000, seed=4))
    assert Path("stories.txt").read_text() == "".join(f"{one}\n{END}\n" for one in stories)
    assert told.startswith(f"wrote stories.txt: {len(stories):,} stories, 20")
    told = shell("data", "sample", "--kind", "dialogues", "--megabytes", "0.01")
    num_lines = len(Path("dialogues.jsonl").read_text().splitlines())
    assert told.startswith(f"wrote dialogues.jsonl: {num_lines} dialogues, 10.")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_one_line(shell: Any) -> None:
    for words in ("data sample --megabytes 0.1 --out", "tokenizer convert tokenizer.json"):
        assert "no space left" in shell.fails(*words.split(), "/dev/full")


def test_prepare_then_verify(shell: Any) -> None:
    words = ["data", "prepare", "corpus.txt"]
    printed = shell(*words, "--validation-fraction", "0.1")
    num_tokens = open_shards("shards", "train").num_tokens
    assert printed.startswith("wrote shards") and f"{num_tokens:,}" in printed
    assert "bytes per token" in printed
    for flags in ([], ["--tokenizer", "tokenizer.json"]):
        assert shell("data", "verify", "shards", *flags).startswith("shards is sound: 2 shards")
    assert shell(*words, "--validation-fraction", "0.1").startswith("up to date:")
    assert "validation_fraction" in shell.fails(*words)
    shell(*words, "--overwrite")
    shard = Path("shards/train_000000.bin")
    shard.write_bytes(b"\xff\xff" + shard.read_bytes()[2:])
    assert "train_000000.bin is damaged" in shell.fails("data", "verify", "shards")


def test_standard_input_is_a_source(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["data", "prepare", "-", "--validation-fraction", "0"]
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(f"a{END}b".encode())))
    )
    shell(*words)
    assert open_shards("shards").num_tokens == 4
    assert "cannot be read again" in shell.fails(*words)


def test_too_few_documents_for_a_split_and_bad_text_are_told(shell: Any) -> None:
    Path("one.txt").write_text("a single document")
    assert "no validation split; rerun with" in shell("data", "prepare", "one.txt")
    Path("bad.txt").write_bytes(b"good \xc3( bad")
    words = ["data", "prepare", "bad.txt", "--out", "other"]
    error = shell.fails(*words)
    assert "bad.txt" in error and "--errors replace" in error
    shell(*words, "--errors", "replace")


def test_one_odd_file_is_skipped_and_the_table_says_why(shell: Any) -> None:
    Path("f").mkdir()
    for name in ("a.md", "b.md", "copy of a.md"):
        Path("f", name).write_text(STORY if name == "b.md" else f"{STORY}{STORY}")
    Path("f/bad.txt").write_bytes(b"noise \xff\xfe\x81")
    Path("f/half.txt").write_bytes(b"noise \xff\xfe\x81" + f"{END}{STORY}".encode())
    Path("f/old.txt").write_bytes("Les élèves déjà là".encode("cp1252"))
    Path("f/table.csv").write_text("id,price\n1,2\n")
    Path("f/chats.jsonl").write_text('{"question": "Why?", "answer": "So."}\n{"text": \n')
    Path("f/picture.png").write_bytes(b"\x89PNG")
    words = ["data", "prepare", "f", "--validation-fraction", "0"]
    printed = shell(*words)
    table = printed[printed.index("\nfiles\n") :]
    rows = {line.split()[0]: line.split()[-3:] for line in table.splitlines()[3:8]}
    # Read, documents, skipped.
    assert rows == {
        ".csv": ["0", "0", "1"],
        ".jsonl": ["1", "1", "0"],
        ".md": ["2", "2", "1"],
        ".png": ["0", "0", "1"],
        ".txt": ["2", "2", "1"],
    }
    for line in (
        "skipped, no text: f/picture.png",
        "skipped, the same as f/a.md: f/copy of a.md",
        "skipped, has no column of text (id, price); set --field: f/table.csv",
        "read as cp1252: f/old.txt",
        "left out 1 document: f/half.txt",
        "line 2 is not JSON",
    ):
        assert line in table, line
    assert open_shards("shards", "train").index.splits["train"].num_documents == 5
    for strict in ("--strict", "--errors=strict"):
        assert "after 'noise ': not UTF-8" in shell.fails(*words, strict, "--overwrite")
    assert "4 more" not in shell(*words, "--overwrite", "--no-drop-duplicates")
    assert open_shards("shards", "train").index.splits["train"].num_documents == 6


@pytest.mark.parametrize("words", ["tokenizer train", "data prepare", "data clean", "new"])
def test_only_bad_files_are_an_error_with_the_reason(
    capsys: pytest.CaptureFixture[str], words: str
) -> None:
    def fails() -> str:
        assert main([*words.split(), "f"]) == 2
        return capsys.readouterr().err.splitlines()[-1]

    Path("f").mkdir()
    Path("f/a.txt").write_bytes(b"noise \xff\xfe\x81")
    Path("f/b.jsonl").write_text("{cut")
    assert "f/a.txt, after 'noise ': not UTF-8" in fails()
    Path("f/a.txt").write_text(END)
    Path("f/b.jsonl").write_text("{}\n{}\n")
    assert "f/b.jsonl line 1 has no field text" in fails()
    Path("f/b.jsonl").unlink()
    assert "f/a.txt holds no text" in fails()


def test_a_special_token_can_be_added_to_serve_as_separator(shell: Any) -> None:
    Tokenizer({id: bytes([id]) for id in range(256)}, []).save("bare.json")
    words = ["data", "prepare", "corpus.txt", "--tokenizer", "bare.json"]
    assert END in shell.fails(*words)
    shell(*words, "--special-token", END)
    assert open_shards("shards").index.end.id == 256


def test_clean_counts_and_writes_and_a_dry_run_leaves_nothing(shell: Any) -> None:
    other = "A quiet hen kept her nine warm eggs under a pile of yellow straw until spring came."
    Path("a.txt").write_text(END.join([STORY, other, "x", STORY]))
    before = sorted(Path().rglob("*"))
    assert "counted, nothing written" in shell("data", "clean", "a.txt", "--dry-run")
    assert sorted(Path().rglob("*")) == before
    shown = shell("data", "clean", "a.txt")
    lines = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if line.strip()}
    assert lines["kept"][0] == "2" and lines["short"][:1] != ["0"]
    assert Path("clean.jsonl").read_text().count("\n") == 2
    assert "clean.jsonl exists" in shell.fails("data", "clean", "a.txt")
