"""Multiple-choice tasks: detection of formats, and errors by line."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from groundup.data.tasks import Question, read_tasks
from groundup.errors import DataError

OURS = {"context": "The sky is", "choices": ["blue.", "loud.", "seven."], "answer": 0}
BLIMP = {"sentence_good": "The cats sleep.", "sentence_bad": "The cats sleeps.", "UID": "x"}


def write(path: Path, *records: Any) -> str:
    lines = [one if isinstance(one, str) else json.dumps(one) for one in records]
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return str(path)


def test_formats_are_detected_by_their_fields(tmp_path: Path) -> None:
    (task,) = read_tasks([write(tmp_path / "mixed.jsonl", OURS, "", BLIMP)])
    assert task.name == "mixed" and task.chance == pytest.approx((1 / 3 + 1 / 2) / 2)
    ours, blimp = task.questions
    assert ours == Question("The sky is", ("blue.", "loud.", "seven."), 0)
    assert blimp == Question("", ("The cats sleep.", "The cats sleeps."), 0)


def test_a_space_separates_context_and_choice() -> None:
    choices = ("b", " b", "\nb")
    for context in ("a", ""):
        found = [Question(context, choices, 0).continuation(index) for index in range(3)]
        assert found == [" b", " b", "\nb"]
    assert Question("a\n\n", choices, 0).continuation(0) == "b"


def test_tasks_are_named_after_their_files(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "same.jsonl", OURS)
    packed = tmp_path / "one" / "verbs.jsonl.gz"
    packed.write_bytes(gzip.compress(json.dumps(BLIMP).encode()))
    (tmp_path / "one" / "notes.txt").write_text("no task")
    names = [str(tmp_path / "one"), str(tmp_path / "two" / "*.jsonl")]
    found = [task.name for task in read_tasks(names)]
    one, two = (str(tmp_path / folder / "same.jsonl") for folder in ("one", "two"))
    assert found == [one, "verbs", two]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "line 2 is not JSON"),
        ("[1]", "line 2: [1] is not an object"),
        ({"context": "a"}, "line 2: no field choices (fields: context)"),
        ({}, "line 2: no field context (fields: none)"),
        ({**OURS, "choices": ["one"]}, "line 2: 1 choice"),
        ({**OURS, "choices": ["a", 1]}, "line 2: choices must be"),
        ({**OURS, "choices": ["a", " "]}, "line 2: one of the choices is empty"),
        ({**OURS, "answer": 3}, "line 2: answer 3"),
        ({**OURS, "answer": -1}, "line 2: answer -1"),
        ({**OURS, "answer": True}, "line 2: answer must be the index of the correct choice"),
        ({**OURS, "context": None}, "line 2: context must be text"),
        ({**BLIMP, "sentence_bad": 1}, "line 2: a sentence must be text"),
        ({**OURS, "context": "\ud800"}, "line 2 has text that is not UTF-8"),
    ],
)
def test_invalid_questions_are_reported_by_line(tmp_path: Path, line: Any, complaint: str) -> None:
    name = write(tmp_path / "bad.jsonl", OURS, line)
    with pytest.raises(DataError, match=re.escape(f"{name} {complaint.split(':')[0]}")) as caught:
        read_tasks([name])
    assert complaint in str(caught.value)


def test_files_without_tasks_are_rejected(tmp_path: Path) -> None:
    empty = write(tmp_path / "empty.jsonl", "")
    with pytest.raises(DataError, match="has no questions"):
        read_tasks([empty])
    with pytest.raises(DataError, match="does not exist"):
        read_tasks([str(tmp_path / "nowhere.jsonl")])
    (tmp_path / "empty.jsonl").rename(tmp_path / "empty.txt")
    with pytest.raises(DataError, match=r"has no \.jsonl files"):
        read_tasks([str(tmp_path)])
