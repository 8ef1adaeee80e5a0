"""The tokenizer and data verbs: what they print and write, and one-line errors."""

import gzip
import io
import re
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

from groundup.cli.main import main
from groundup.data.samples import write_stories
from groundup.data.shards import open_shards
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.reference import train_bpe_reference

Words = list[str | Path]

TEXT = "the theme of the thesis is then and there: naïve 日本 — 😀!\n"
END = "<|endoftext|>"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text((TEXT + END) * 3, "utf-8")
    return path


@pytest.fixture
def tokenizer_path(tmp_path: Path) -> Path:
    vocab, merges = train_bpe_reference(TEXT, 290, [END])
    path = tmp_path / "tokenizer.json"
    Tokenizer(vocab, merges, [END]).save(path)
    return path


def test_train_writes_the_same_tokenizer_as_the_reference(
    corpus: Path, tmp_path: Path, shell: Any
) -> None:
    out = tmp_path / "made" / "tokenizer.json"
    tokens = ["--special-token", "<|a|>", "--special-token", END]
    printed = shell("tokenizer", "train", corpus, "--vocab-size", 280, *tokens, "--out", out)
    vocab, merges = train_bpe_reference(corpus.read_text("utf-8"), 280, ["<|a|>", END])
    tokenizer = Tokenizer.load(out)
    assert (tokenizer.merges, tokenizer.vocab) == (merges, vocab)
    for word in ("wrote", "280", "bytes per token", "longest tokens"):
        assert word in printed
    words: Words = ["--pattern", "cl100k", "--vocab-size", "5000", "--out", tmp_path / "t.json"]
    assert "ran out of pairs" in shell("tokenizer", "train", corpus, *words)
    tokenizer = Tokenizer.load(tmp_path / "t.json")
    assert tokenizer.special_tokens.keys() == {END} and tokenizer.pattern.name == "cl100k"


@pytest.mark.parametrize("name", ["ids.npy", "ids.bin", "ids.txt"])
def test_encode_and_decode_round_trip(
    tokenizer_path: Path, corpus: Path, tmp_path: Path, shell: Any, name: str
) -> None:
    ids, flags = tmp_path / name, ("--tokenizer", tokenizer_path)
    shell("tokenizer", "encode", corpus, *flags, "--out", ids)
    assert shell("tokenizer", "decode", ids, *flags) == corpus.read_text("utf-8")
    shell("tokenizer", "decode", ids, *flags, "--out", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == corpus.read_bytes()
    expected = Tokenizer.load(tokenizer_path).encode(corpus.read_text("utf-8"))
    if name == "ids.npy":
        assert numpy.load(ids).tolist() == expected
    if name == "ids.bin":
        assert numpy.fromfile(ids, "<u2").tolist() == expected
        # Larger ids take four bytes.
        wide, flags = tmp_path / "wide.json", ("--tokenizer", tmp_path / "wide.json")
        Tokenizer({id: bytes([id]) for id in range(256)} | {70_000: b"<x>"}, [], ["<x>"]).save(wide)
        shell("tokenizer", "encode", "--text", "a<x>", *flags, "--out", ids)
        assert shell("tokenizer", "decode", ids, *flags) == "a<x>"


def test_encode_takes_text_a_packed_file_and_standard_input(
    tokenizer_path: Path, tmp_path: Path, shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--tokenizer", tokenizer_path)
    ids = " ".join(map(str, Tokenizer.load(tokenizer_path).encode(TEXT)))
    assert shell("tokenizer", "encode", "--text", TEXT, *flags).split() == ids.split()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    assert shell("tokenizer", "encode", *flags).split() == ids.split()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(ids.encode())))
    assert shell("tokenizer", "decode", *flags) == TEXT
    packed = tmp_path / "text.txt.gz"
    packed.write_bytes(gzip.compress(TEXT.encode("utf-16")))
    assert shell("tokenizer", "encode", packed, *flags).split() == ids.split()
    packed.write_bytes(packed.read_bytes()[:-9])
    assert "text.txt.gz" in shell.fails("tokenizer", "encode", packed, *flags)


def test_arrays_without_ids_are_rejected(tokenizer_path: Path, tmp_path: Path, shell: Any) -> None:
    numpy.save(tmp_path / "float.npy", numpy.zeros((2, 2)))
    numpy.save(tmp_path / "table.npy", numpy.zeros((2, 2), int))
    (tmp_path / "cut.npy").write_bytes(b"\x93NUMPY")
    for name, noun in (("float.npy", "float64"), ("table.npy", "1-D"), ("cut.npy", "cut.npy")):
        words = ["tokenizer", "decode", tmp_path / name, "--tokenizer", tokenizer_path]
        assert noun in shell.fails(*words)


def test_inspect_shows_every_step(tokenizer_path: Path, shell: Any) -> None:
    printed = shell("tokenizer", "inspect", f"thé 日{END}", "--tokenizer", tokenizer_path)
    tokenizer = Tokenizer.load(tokenizer_path)
    ids = " ".join(map(str, tokenizer.encode(f"thé 日{END}")))
    for part in ("'thé'", "t | h | Ã | ©", "special token", ids):
        assert part in printed
    # Merges are numbered from 1, as on the page.
    rank = tokenizer.merges.index((b"t", b"h"))
    assert f"merge {rank + 1} " in printed


def test_compare_evaluates_every_tokenizer_on_every_text(
    tokenizer_path: Path, corpus: Path, tmp_path: Path, shell: Any
) -> None:
    other, second = tmp_path / "other.json", tmp_path / "second.txt"
    output = shell("tokenizer", "train", corpus, "--vocab-size", "270", "--out", other)
    second.write_text("another text", "utf-8")
    words: Words = ["compare", tokenizer_path, other, "--texts", corpus, second]
    results = shell.json("tokenizer", *words, "--corpus-gb", "1")
    assert [(one["text"], one["tokenizer"]) for one in results] == [
        (str(text), str(tokenizer)) for text in (corpus, second) for tokenizer in words[1:3]
    ]
    first = results[0]
    ids = Tokenizer.load(tokenizer_path).encode(TEXT) * 3
    assert (first["num_tokens"], first["num_bytes"]) == (len(ids), 3 * len(TEXT.encode()))
    assert first["tokens_per_second"] > 0 and first["corpus_seconds"] > 0
    printed = shell("tokenizer", *words)
    assert f"{len(ids):,}" in printed and "825 GB" in printed
    # Every command prints the same bytes per token.
    assert first["bytes_per_token"] == first["num_bytes"] / len(ids)
    output += shell("data", "prepare", corpus, "--tokenizer", other, "--out", tmp_path / "shards")
    same = f"{results[1]['bytes_per_token']:.4f}"
    assert re.findall(r"bytes per token +(.*)", output) == [same, same]


STORY = "The old fox walked down to the river at night and saw the moon in the water there. "


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a text and a tokenizer."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text(END.join(f"{STORY}{number} 日本" for number in range(500)))
    Tokenizer({id: bytes([id]) for id in range(256)}, [], [END]).save("tokenizer.json")
    return tmp_path


def test_prepare_then_verify(shell: Any) -> None:
    shell("data", "sample", "--megabytes", "0.01", "--seed", "4")
    assert Path("stories.txt").read_text().startswith(next(iter(write_stories(1_000, seed=4))))
    words = ["data", "sample", "--kind", "dialogues", "--megabytes", "0.01"]
    assert shell(*words).startswith("wrote dialogues.jsonl")
    words = ["data", "prepare", "corpus.txt", "--validation-fraction", "0.1"]
    printed = shell(*words)
    num_tokens = open_shards("shards", "train").num_tokens
    assert printed.startswith("wrote shards") and f"{num_tokens:,}" in printed
    assert "bytes per token" in printed and shell(*words).startswith("up to date:")
    for flags in ([], ["--tokenizer", "tokenizer.json"]):
        assert shell("data", "verify", "shards", *flags).startswith("shards is intact: 2 shards")
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
