"""`groundup temperatures` as a person types it, on a run that was trained here."""

import json
import math
import shutil
from pathlib import Path

import pytest

from groundup.cli.parsing import parse_arguments
from groundup.cli.temperatures import Arguments, run
from groundup.data.shards import open_shards
from groundup.errors import GroundupError
from groundup.experiments.reference_text import unseen_documents
from groundup.generation import LanguageModel
from groundup.runs.folder import RunFolder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, folder_of_run: Path) -> Path:
    """A folder with the run runs/small in it, and one that has no checkpoint."""
    folder = tmp_path_factory.mktemp("temperatures")
    shutil.copytree(folder_of_run / "runs", folder / "runs")
    (folder / "runs" / "empty").mkdir()
    for name in ("config.yaml", "tokenizer.json"):
        (folder / "runs" / "empty" / name).write_bytes((folder / "runs/small" / name).read_bytes())
    (folder / "stories.txt").write_text("Once upon a time there was a cat.")
    return folder


@pytest.fixture(autouse=True)
def in_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def temperatures(*words: str) -> None:
    arguments = parse_arguments(Arguments, "groundup temperatures", words)
    assert arguments is not None
    run(arguments)


def test_a_study_is_printed_and_written(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("small", "--num-samples", "3", "--max-tokens", "6", "--temperatures", "0", "1")
    more = ("--prompt", "The cat", "--prompt", "One", "--reference", "stories.txt")
    for place in ("first", "second"):
        files = ("--out", str(tmp_path / f"{place}.json"), "--markdown", str(tmp_path / place))
        temperatures(*words, *more, *files, "--title", "Warm", "--finding", "Found.")
    printed = capsys.readouterr()
    assert "small\n" in printed.out and printed.err == ""
    assert f"written: {tmp_path / 'second' / 'warm.md'}" in printed.out
    text = (tmp_path / "first.json").read_text("utf-8")
    assert text == (tmp_path / "second.json").read_text("utf-8")
    stored = json.loads(text)
    assert stored["conditions"]["prompts"] == ["The cat", "One"]
    assert stored["reference"] == "stories.txt"
    (studied,) = stored["runs"]
    assert [(one["setting"]["temperature"], len(one["texts"])) for one in studied["results"]] == [
        (0.0, 2),
        (1.0, 6),
        (1.0, 6),
    ]
    page = (tmp_path / "first" / "warm.md").read_text("utf-8")
    assert page.startswith("# Warm\n\n") and "(written by hand): Found.\n\n" in page
    for label in ("0", "1", "1, top-p 0.9", "reference text"):
        assert f"\n| {label} | " in page and f"\n  {label} " in printed.out
    assert (tmp_path / "first" / "warm" / "over_temperature.svg").exists()


def test_texts_are_held_against_what_the_model_has_not_seen(folder: Path, tmp_path: Path) -> None:
    words = ["small", "--temperatures", "1", "--top-p", "1", "--num-samples", "3"]
    temperatures(*words, "--max-tokens", "6", "--out", str(tmp_path / "own.json"))
    own = json.loads((tmp_path / "own.json").read_text("utf-8"))
    (studied,) = own["runs"]
    assert studied["reference_is_unseen"] and own["reference"] is None
    assert studied["reference"]["known_words"] is None

    run_folder = RunFolder(folder / "runs" / "small")
    language_model = LanguageModel.load(run_folder.path)
    tokenizer = language_model.tokenizer
    split = open_shards(run_folder.read_config().data.shards, "validation")
    documents = tokenizer.decode(split[:]).split(split.index.end.text)[:3]
    assert unseen_documents(run_folder, tokenizer, 3) == tuple(documents)
    cut = [
        tokenizer.decode(tokenizer.encode(document)[: studied["most_tokens"]])
        for document in documents
    ]
    bits = sum(language_model.score(text).loss for text in cut) / 3 / math.log(2)
    assert studied["reference"]["bits_per_token"]["mean"] == pytest.approx(bits, rel=1e-4)

    # Other shards than those it learned from may hold what it has seen.
    environment = json.loads(run_folder.environment_file.read_bytes())
    environment["data"]["content"] = "sha256:another"
    moved = tmp_path / "runs" / "moved"
    shutil.copytree(run_folder.path, moved)
    (moved / "environment.json").write_text(json.dumps(environment))
    assert unseen_documents(RunFolder(moved), tokenizer, 3) == ()
    words = [str(moved), *words[1:], "--max-tokens", "6"]
    temperatures(*words, "--reference", "stories.txt", "--markdown", str(tmp_path / "page"))
    (page,) = (tmp_path / "page").glob("*.md")
    assert "the first documents of stories.txt" in page.read_text("utf-8")
    assert "Where the model learned from them" in page.read_text("utf-8")


def test_runs_are_taken_once_and_the_prompt_has_a_default(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "study.json"
    temperatures(
        "small", "runs/small", "--temperatures", "0", "--max-tokens", "2", "--out", str(out)
    )
    stored = json.loads(out.read_text("utf-8"))
    assert [one["name"] for one in stored["runs"]] == ["small"]
    assert stored["conditions"]["prompts"] == ["Once upon a time"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "needs at least one run"),
        (["smal"], r"run smal does not exist.* did you mean small\?"),
        (["small", "empty"], "runs/empty has no checkpoint yet"),
        (["small", "--temperatures", "0.5", "-0.1"], "the temperature is -0.1"),
        (["small", "--temperatures", "nan"], "must be a finite number"),
        (["small", "--temperatures"], "no temperature to generate at"),
        (["small", "--top-p"], "no top-p to generate at"),
        (["small", "--top-p", "0"], "top-p is 0"),
        (["small", "--temperatures", "0", "--top-p", "1.1"], "top-p is 1.1"),
        (["small", "--num-samples", "0"], "number of texts is 0"),
        (["small", "--max-tokens", "0"], "max_tokens is 0"),
        (["small", "--prompt", "long " * 40], "more than the context of 16: shorten it"),
        (["small", "--checkpoint", "7"], "no checkpoint of step 7"),
        (["small", "--seed", "-1"], "seed -1 is out of range"),
        (["small", "--out", "runs"], "--out runs is a folder: name a file"),
        (["small", "--markdown", "stories.txt"], "stories.txt is a file: name a folder"),
        (["small", "--reference", "nowhere.txt"], "nowhere.txt does not exist"),
    ],
)
def test_a_mistake_is_named_before_anything_is_written(
    capsys: pytest.CaptureFixture[str], words: list[str], complaint: str
) -> None:
    with pytest.raises(GroundupError, match=complaint):
        temperatures(*words)
    assert capsys.readouterr().out == ""


def test_a_written_study_makes_its_page_anew_without_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--num-samples", "2", "--max-tokens", "4", "--temperatures", "0", "1", "--title", "T")
    file = tmp_path / "study.json"
    temperatures("small", *words, "--out", str(file), "--markdown", str(tmp_path / "first"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = ("--markdown", "again", "--title", "T")
    temperatures(str(file), *again, "--out", str(tmp_path / "copy.json"))
    assert (tmp_path / "copy.json").read_bytes() == file.read_bytes()
    page = (tmp_path / "first" / "t.md").read_text("utf-8")
    assert Path("again/t.md").read_text("utf-8") == page
    temperatures(str(file), *again, "--finding", "Seen later.")
    assert "Seen later." in Path("again/t.md").read_text("utf-8")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"runs": []}', "\x00"])
def test_a_file_that_is_no_study_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(GroundupError, match=r"other\.json is no study of temperatures"):
        temperatures(str(file))


def test_a_written_study_stands_alone(tmp_path: Path) -> None:
    file = tmp_path / "study.json"
    file.write_text("{}")
    with pytest.raises(GroundupError, match="stands alone"):
        temperatures("small", str(file))
    for words in (("--temperatures", "0.5"), ("--top-p", "1"), ("--seed", "3")):
        with pytest.raises(GroundupError, match=f"{words[0]} would change nothing in it"):
            temperatures(str(file), *words)
