"""Tokenizers on corpora: the held-out part, the home advantage, and what the command writes."""

import json
import random
from pathlib import Path

import pytest

from groundup.cli.tokenizer_study import Arguments, run
from groundup.errors import ConfigError, DataError, GroundupError
from groundup.experiments.tokenizer_study import hold_out, study_tokenizers
from groundup.tokenizer import Tokenizer


def babble(words: str, seed: int) -> str:
    generator = random.Random(seed)
    lines = [" ".join(generator.choices(words.split(), k=8)) for _ in range(400)]
    return "\n".join(lines) + "\n"


CORPORA = {
    "stories": babble("the little bird found a shiny stone under old trees and sang", 0),
    "code": babble("def return self lambda import yield while print(value) == None:", 1),
}


def test_learning_and_measuring_share_no_text() -> None:
    text = CORPORA["stories"]
    learned, held_out = hold_out(text, "stories")
    assert learned + held_out == text and learned.endswith("\n")
    assert len(held_out) == pytest.approx(0.1 * len(text), rel=0.1)


@pytest.mark.parametrize("text", ["", "a", " \n \n "])
def test_too_little_text_is_named(text: str) -> None:
    with pytest.raises(DataError, match="tiny has too little text"):
        hold_out(text, "tiny")


def test_a_tokenizer_is_best_at_home() -> None:
    study = study_tokenizers(CORPORA, {}, vocab_sizes=[270, 290], num_passes=1)
    assert study.tokenizers == ["stories-270", "code-270", "stories-290", "code-290"]
    for cell in study.cells:
        assert cell.num_bytes == len(hold_out(CORPORA[cell.corpus], "")[1].encode())
        assert cell.relative_to_home is not None
        if cell.learned_from == cell.corpus:
            assert cell.relative_to_home == 1
        else:
            assert cell.relative_to_home < 1
    small, large = study.cell("code-270", "code"), study.cell("code-290", "code")
    assert large.bytes_per_token > small.bytes_per_token


def test_a_given_tokenizer_is_measured_beside_a_learned_one_of_its_name() -> None:
    bytes_only = Tokenizer({id: bytes([id]) for id in range(256)}, [])
    study = study_tokenizers(CORPORA, {"code-270": bytes_only}, vocab_sizes=[270], num_passes=1)
    assert study.tokenizers == ["code-270", "stories-270", "code-270 (learned)"]
    assert study.cell("code-270", "code").bytes_per_token == 1.0
    assert study.cell("code-270 (learned)", "code").relative_to_home == 1


def test_a_given_tokenizer_has_no_home() -> None:
    bytes_only = Tokenizer({id: bytes([id]) for id in range(256)}, [])
    study = study_tokenizers(CORPORA, {"bytes": bytes_only}, num_passes=1)
    assert [cell.bytes_per_token for cell in study.cells] == [1.0, 1.0]
    assert {cell.relative_to_home for cell in study.cells} == {None}


def test_a_study_without_tokenizers_is_refused() -> None:
    with pytest.raises(DataError, match="--vocab-sizes"):
        study_tokenizers(CORPORA, {})


def test_the_command_prints_tables_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in CORPORA.items():
        (tmp_path / f"{name}.txt").write_text(text, "utf-8")
    files = tuple(str(tmp_path / f"{name}.txt") for name in CORPORA)
    out = tmp_path / "study.json"
    run(Arguments(corpora=files, vocab_sizes=(280,), megabytes=0.01, out=out))
    page = capsys.readouterr().out
    assert "bytes per token" in page and "own tokenizer" in page and "MB/s" in page
    stored = json.loads(out.read_text("utf-8"))
    assert stored["corpora"] == ["stories", "code"] and len(stored["cells"]) == 4
    # No more than was asked for is read, and a tenth of that is measured.
    assert all(cell["num_bytes"] <= 1_100 for cell in stored["cells"])


@pytest.mark.parametrize(
    "arguments",
    [
        Arguments(corpora=()),
        Arguments(corpora=("none.txt",), vocab_sizes=(300,)),
        Arguments(corpora=("none.txt",), vocab_sizes=(300,), megabytes=0),
    ],
)
def test_bad_arguments_are_named(arguments: Arguments) -> None:
    with pytest.raises(GroundupError):
        run(arguments)
    assert issubclass(ConfigError, GroundupError)
