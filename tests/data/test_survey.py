"""Surveys of a text: exact and extrapolated counts, and prompts."""

from pathlib import Path

import pytest

from groundup.data import survey
from groundup.data.survey import survey_text

ENGLISH = "The fox and the bear went to the river, and that was the end of it.\n"
GERMAN = "Der Fuchs und der Bär gingen an den Fluss, und das war nicht das Ende von allem.\n"


def test_files_and_documents_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(ENGLISH)
    (tmp_path / "b.txt").write_text(f"{ENGLISH}<|endoftext|>{GERMAN}<|endoftext|>{ENGLISH}")
    found = survey_text([tmp_path])
    assert (found.num_files, found.num_documents) == (2, 4)
    assert found.num_bytes == len((3 * ENGLISH + GERMAN).encode()) and found.is_whole
    assert found.document_bytes == len(ENGLISH)


def test_languages_are_named_and_code_is_code(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(ENGLISH * 30)
    assert (+survey_text([tmp_path]).languages).keys() == {"English"}
    (tmp_path / "b.txt").write_text("昔々、あるところに、おじいさんとおばあさんがいました。" * 80)
    (tmp_path / "c.txt").write_text(GERMAN * 25)
    (tmp_path / "d.py").write_text("def find(self, name):\n    return self.names[name]\n" * 40)
    found = +survey_text([tmp_path]).languages
    assert found.keys() == {"English", "German", "Japanese", "code"}
    # By size: one long file among many short ones.
    for number in range(200):
        (tmp_path / f"{number}.py").write_text(f"def f():\n    return {number}\n")
    (tmp_path / "e.txt").write_text(ENGLISH * 3_000)
    assert survey_text([tmp_path]).languages["English"] > 0.8 * survey_text([tmp_path]).num_bytes


def test_prompts_are_distinct_openings(tmp_path: Path) -> None:
    words = ["upon a time"] * 20 + ["in a house", "by the sea"]
    for number, rest in enumerate(words):
        (tmp_path / f"{number:02}.txt").write_text(f"Once {rest} there was an old fox.")
    assert len(set(survey_text([tmp_path]).prompts)) == 3
    lines = [f"Line number {word} begins here and goes on.\n" for word in "abcdefgh" * 200]
    (tmp_path / "one.md").write_text("".join(lines))
    prompts = survey_text([tmp_path / "one.md"]).prompts
    assert prompts and all(prompt.startswith("Line number") for prompt in prompts)


def test_counts_are_extrapolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "_MAX_BYTES", 50_000)
    monkeypatch.setattr(survey, "_BATCH_BYTES", 10_000)
    (tmp_path / "long.txt").write_text("<|endoftext|>".join([GERMAN * 10] * 400))
    found = survey_text([tmp_path])
    assert not found.is_whole
    assert found.num_documents == pytest.approx(400, rel=0.1)
    assert found.num_bytes == pytest.approx(4_000 * len(GERMAN.encode()), rel=0.1)
