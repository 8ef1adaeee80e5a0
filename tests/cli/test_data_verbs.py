"""The data verbs as typed: what they print and leave."""

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


def test_prepare_then_verify(shell: Any) -> None:
    words = ["data", "prepare", "corpus.txt", "--validation-fraction", "0.1"]
    printed = shell(*words)
    num_tokens = open_shards("shards", "train").num_tokens
    assert printed.startswith("wrote shards") and f"{num_tokens:,}" in printed
    assert "bytes per token" in printed and shell(*words).startswith("up to date:")
    for flags in ([], ["--tokenizer", "tokenizer.json"]):
        assert shell("data", "verify", "shards", *flags).startswith("shards is sound: 2 shards")
    shard = Path("shards/train_000000.bin")
    shard.write_bytes(b"\xff\xff" + shard.read_bytes()[2:])
    assert "train_000000.bin is damaged" in shell.fails("data", "verify", "shards")
    Path("one.txt").write_text("a single document")
    assert "no validation split; rerun with" in shell("data", "prepare", "one.txt", "--overwrite")


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
    assert "f/a.txt has no text" in fails()


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
