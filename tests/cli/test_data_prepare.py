"""`groundup data prepare` and `data verify`: what they print, and one line a mistake."""

import io
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from groundup.cli.main import main
from groundup.data.shards import open_shards
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.reference import train_bpe_reference

TEXT = "the theme of the thesis is then and there: naïve 日本 — 😀!\n"
END = "<|endoftext|>"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text(END.join(f"{TEXT}{number}" for number in range(500)), "utf-8")
    return path


@pytest.fixture
def tokenizer_path(tmp_path: Path) -> Path:
    vocab, merges = train_bpe_reference(TEXT, 290, [END])
    path = tmp_path / "tokenizer.json"
    Tokenizer(vocab, merges, [END]).save(path)
    return path


def run(*words: str | Path) -> int:
    return main(["data", *map(str, words)])


def test_prepare_then_verify(
    corpus: Path,
    tokenizer_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    shell: Any,
) -> None:
    out = tmp_path / "shards"
    words = ("prepare", corpus, "--tokenizer", tokenizer_path, "--out", out, "--shard-ids", "9000")
    assert run(*words, "--validation-fraction", "0.1") == 0
    printed = capsys.readouterr()
    num_ids = open_shards(out, "train").num_ids
    assert printed.err == "" and printed.out.startswith(f"wrote {out}")
    assert f"{num_ids:,} ids" in printed.out and "bytes per token" in printed.out
    assert "MB/s" in printed.out and "2 uint16 shards" in printed.out
    assert run("verify", out) == 0
    assert run("verify", out, "--tokenizer", tokenizer_path) == 0
    assert capsys.readouterr().out.count(f"{out} is sound: 3 shards") == 2
    assert run(*words, "--validation-fraction", "0.1") == 0
    assert capsys.readouterr().out.startswith("up to date:")
    assert "validation_fraction is 0.1, not 0.005" in shell.fails("data", *words)
    assert run(*words, "--overwrite") == 0


def test_verify_names_what_is_wrong(
    corpus: Path, tokenizer_path: Path, tmp_path: Path, shell: Any
) -> None:
    out = tmp_path / "shards"
    assert run("prepare", corpus, "--tokenizer", tokenizer_path, "--out", out) == 0
    shard = out / "train_000000.bin"
    shard.write_bytes(b"\xff\xff" + shard.read_bytes()[2:])
    assert "train_000000.bin has id 65535 at byte 0" in shell.fails("data", "verify", out)
    assert "nowhere does not exist" in shell.fails("data", "verify", tmp_path / "nowhere")


def test_standard_input_is_a_source(
    tokenizer_path: Path, tmp_path: Path, shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "shards"
    words = ("prepare", "-", "--tokenizer", tokenizer_path, "--out", out)
    for extra in ((), ("--overwrite",)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"a{END}b".encode())))
        assert run(*words, "--validation-fraction", "0", *extra) == 0
        assert open_shards(out).num_ids == 4
    source = json.loads((out / "index.json").read_text())["sources"][0]
    assert source["path"] == "-" and source["size"] is None
    assert "cannot be read again" in shell.fails("data", *words, "--validation-fraction", "0")


def test_too_few_documents_for_a_split_is_said(
    tokenizer_path: Path, tmp_path: Path, shell: Any
) -> None:
    path = tmp_path / "one.txt"
    path.write_text("a single document")
    assert "no validation split; rerun with" in shell(
        "data", "prepare", path, "--tokenizer", tokenizer_path, "--out", tmp_path / "out"
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--shard-ids", "0"], "--shard-ids"),
        (["--validation-fraction", "2"], "--validation-fraction"),
        (["--separator", "<|end|>"], "has no special token <|end|>"),
        (["--errors", "ignore"], "ignore"),
        (["--num-threads", "0"], "--num-threads"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    corpus: Path, tokenizer_path: Path, tmp_path: Path, shell: Any, flags: list[str], message: str
) -> None:
    out = tmp_path / "shards"
    words: list[str | Path] = ["prepare", corpus, "--tokenizer", tokenizer_path, "--out", out]
    assert message in shell.fails("data", *words, *flags)
    assert not out.exists()


def test_bad_text_is_named_with_its_place_and_the_way_out(
    tokenizer_path: Path, tmp_path: Path, shell: Any
) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(b"good \xc3( bad")
    words = ("prepare", path, "--tokenizer", tokenizer_path, "--out", tmp_path / "out")
    error = shell.fails("data", *words)
    assert "bad.txt, byte 5" in error and "--errors replace" in error
    assert run(*words, "--errors", "replace", "--validation-fraction", "0.005") == 0


def test_a_special_token_can_be_added_to_serve_as_separator(tmp_path: Path, corpus: Path) -> None:
    path = tmp_path / "bare.json"
    Tokenizer({id: bytes([id]) for id in range(256)}, []).save(path)
    out = tmp_path / "out"
    words: list[str | Path] = ["prepare", corpus, "--tokenizer", path, "--out", out]
    assert run(*words) == 2
    assert run(*words, "--special-token", END) == 0
    assert open_shards(out).index.end.id == 256


def test_an_interrupted_command_goes_on(
    tmp_path: Path, corpus: Path, tokenizer_path: Path, hold: Any
) -> None:
    """Ctrl-C in a real process: status 130, no index, and the second run finishes the work."""
    out = tmp_path / "out"
    command = [sys.executable, "-m", "groundup", "data", "prepare", str(corpus)]
    command += ["--tokenizer", str(tokenizer_path), "--out", str(out), "--shard-ids", "2000"]
    held = hold("groundup.data.prepare.shard_writer:ShardWriter.finish_shard")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    held.wait(process)
    process.send_signal(signal.SIGINT)
    held.release()
    _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert errors == "interrupted\n"
    assert (out / "unfinished.json").exists() and not (out / "index.json").exists()
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 0 and again.stdout.startswith("finished ")
    assert run("verify", out, "--tokenizer", tokenizer_path) == 0
