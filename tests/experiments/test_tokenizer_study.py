"""Tokenizers on corpora: the held-out part, the home advantage, and what the command writes."""

import json
import random
import re
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import pytest

from groundup.cli.tokenizer_study import Arguments, run
from groundup.errors import DataError, GroundupError
from groundup.experiments.report.charts import Chart
from groundup.experiments.report.document import Figure
from groundup.experiments.report.html_page import render_html
from groundup.experiments.report.markdown_page import render_markdown
from groundup.experiments.report.tokenizer_page import find_verdicts, tokenizer_document
from groundup.experiments.tokenizer_study import TokenizerStudy, hold_out, study_tokenizers
from groundup.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("quick_pictures")


def babble(words: str, seed: int) -> str:
    generator = random.Random(seed)
    lines = [" ".join(generator.choices(words.split(), k=8)) for _ in range(400)]
    return "\n".join(lines) + "\n"


BYTES_ONLY = Tokenizer({id: bytes([id]) for id in range(256)}, [])
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
    study = study_tokenizers(CORPORA, {"code-270": BYTES_ONLY}, vocab_sizes=[270], num_passes=1)
    assert study.tokenizers == ["code-270", "stories-270", "code-270 (learned)"]
    assert study.cell("code-270", "code").bytes_per_token == 1.0
    assert study.cell("code-270 (learned)", "code").relative_to_home == 1


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
    run(Arguments(corpora=files, vocab_sizes=(280,), megabytes=0.01, out=(out,)))
    page = capsys.readouterr().out
    assert f"written: {out}" in page
    assert "Bytes per token" in page and "Away from home" in page and "MB/s" in page
    stored = json.loads(out.read_text("utf-8"))
    assert stored["corpora"] == ["stories", "code"] and len(stored["cells"]) == 4
    # No more than was asked for is read, and a tenth of that is measured.
    assert all(cell["num_bytes"] <= 1_100 for cell in stored["cells"])


def test_special_tokens_between_documents_are_not_measured() -> None:
    marked = {name: text.replace("\n", "<|end|>") for name, text in CORPORA.items()}
    study = study_tokenizers(
        marked, {"bytes": BYTES_ONLY}, vocab_sizes=[270], special_tokens=["<|end|>"], num_passes=1
    )
    for corpus, text in marked.items():
        words = hold_out(text, corpus)[1].replace("<|end|>", "")
        assert {cell.num_bytes for cell in study.cells if cell.corpus == corpus} == {len(words)}


@pytest.fixture(scope="module")
def study() -> TokenizerStudy:
    """Two corpora whose names are no markup, two sizes, and a tokenizer that was given."""
    corpora = {"<b>stories</b>": CORPORA["stories"], "code | css": CORPORA["code"]}
    return study_tokenizers(
        corpora, {"bytes": BYTES_ONLY}, vocab_sizes=[270, 290], num_passes=1, device="A <CPU>"
    )


def test_markdown_holds_every_figure_and_a_drawing(study: TokenizerStudy) -> None:
    files = render_markdown(
        tokenizer_document(study, "A study", why="Why?", finding="It is *so*.\n\nAnd so.")
    )
    assert list(files) == ["a_study.md", "a_study/bytes_per_token.svg"]
    page = files["a_study.md"]
    assert page.startswith("# A study\n\nWhy?\n")
    assert "(written by hand): It is \\*so\\*.\n\nAnd so.\n" in page
    assert "](a_study/bytes_per_token.svg)" in page and "A \\<CPU\\>" in page
    for cell in study.cells:
        assert f" {cell.bytes_per_token:.3f} " in page
        assert f" {cell.bytes_per_core_second / 1e6:,.0f} " in page
        if cell.relative_to_home is not None:
            assert f" {cell.relative_to_home:.1%} " in page
    for line in page.splitlines():
        if line.startswith("| ") and not line.startswith("| ---"):
            assert len(re.findall(r"(?<!\\)\|", line)) == 5, line


def charts_of(study: TokenizerStudy) -> tuple[Chart, ...]:
    figure = tokenizer_document(study, "x").sections[0].blocks[0]
    assert isinstance(figure, Figure)
    return figure.charts


def test_the_charts_show_every_cell(study: TokenizerStudy) -> None:
    charts = charts_of(study)
    assert [chart.title.rpartition(" of ")[2] for chart in charts] == study.corpora
    for chart, corpus in zip(charts, study.corpora, strict=True):
        labels = [line.label for line in chart.lines]
        assert labels == ["bytes", *(f"from {name}" for name in study.corpora)]
        shown = {point for line in chart.lines for point in line.points}
        cells = [cell for cell in study.cells if cell.corpus == corpus]
        assert shown == {(cell.vocab_size, cell.bytes_per_token) for cell in cells}


def test_the_page_stands_alone_and_shows_names_as_they_are(study: TokenizerStudy) -> None:
    page = render_html(tokenizer_document(study, "A study", why="Why?", finding="It is <so>."))
    assert "It is &lt;so&gt;." in page and "<b>" not in page and "<CPU>" not in page
    assert "&lt;b&gt;stories&lt;/b&gt;" in page
    assert "src=" not in page.partition("</main>")[0]
    for sentence in find_verdicts(study):
        assert escape(sentence) in page


def test_verdicts_name_the_least_and_the_greatest_loss(study: TokenizerStudy) -> None:
    abroad = [c for c in study.cells if c.learned_from not in (None, c.corpus)]
    more = sorted(1 / (cell.relative_to_home or 0) - 1 for cell in abroad)
    loss, gain = find_verdicts(study)
    assert f" {more[0]:.0%} to {more[-1]:.0%} more tokens" in loss
    assert "a vocabulary of 290" in gain and "one of 270" in gain


def test_a_tokenizer_that_is_better_abroad_than_the_one_at_home_makes_no_negative_loss() -> None:
    half = CORPORA["stories"][: len(CORPORA["stories"]) // 2]
    study = study_tokenizers({"a": half, "b": half}, {}, vocab_sizes=[280], num_passes=1)
    cells = [
        replace(cell, relative_to_home=1.004) if cell.learned_from != cell.corpus else cell
        for cell in study.cells
    ]
    (loss,) = find_verdicts(replace(study, cells=cells))
    assert "takes 100% to 100% of the tokens that its own tokenizer" in loss


def test_a_corpus_too_small_for_its_vocabulary_stays_in_its_group() -> None:
    corpora = {"stories": CORPORA["stories"], "tiny": "ab ab\n" * 20}
    study = study_tokenizers(corpora, {}, vocab_sizes=[280], num_passes=1)
    assert study.cell("tiny-280", "tiny").vocab_size < 280
    assert charts_of(study)[1].lines[1].points[0][0] < 280
    assert len(find_verdicts(study)) == 1


def test_given_tokenizers_alone_have_no_homes_to_speak_of(tmp_path: Path) -> None:
    study = study_tokenizers({"code": CORPORA["code"]}, {"bytes": BYTES_ONLY}, num_passes=1)
    assert find_verdicts(study) == [] and study.cells[0].relative_to_home is None
    page = render_markdown(tokenizer_document(study, "Bytes"))["bytes.md"]
    assert "with 1 that were given" in page and "Away from home" not in page
    assert "Outcome" not in render_html(tokenizer_document(study, "Bytes"))


def test_the_command_writes_the_page_and_markdown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "code.txt").write_text(CORPORA["code"], "utf-8")
    (tmp_path / "finding.txt").write_text("Words of mine.", "utf-8")
    page, folder = tmp_path / "study.html", tmp_path / "experiments"
    run(
        Arguments(
            corpora=(str(tmp_path / "code.txt"),),
            vocab_sizes=(270,),
            out=(page,),
            markdown=folder,
            finding=f"@{tmp_path / 'finding.txt'}",
        )
    )
    assert f"written: {folder / 'tokenizers.md'}" in capsys.readouterr().out
    assert "Words of mine." in page.read_text("utf-8")
    assert "Words of mine." in (folder / "tokenizers.md").read_text("utf-8")
    assert (folder / "tokenizers" / "bytes_per_token.svg").exists()


def test_bad_arguments_are_named_first(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"out": (tmp_path,)}, "is a folder"),
        ({"out": (tmp_path / "study.csv",)}, r"must end in \.json or \.html"),
        ({"markdown": tmp_path / "file"}, "is a file"),
        ({"finding": "@none.txt"}, "cannot be read"),
        ({"corpora": ()}, "at least one corpus"),
        ({}, r"none\.txt does not exist"),
        *(({"megabytes": size}, "above 0") for size in (0, float("nan"), float("inf"))),
    ]
    for changes, complaint in mistakes:
        given: dict[str, Any] = {"corpora": ("none.txt",), "vocab_sizes": (300,), **changes}
        with pytest.raises(GroundupError, match=complaint):
            run(Arguments(**given))
