"""Multiple-choice tasks from JSON lines, in one of two formats:

{"context": …, "choices": […], "answer": i}                         our own; i counts from 0
{"sentence_good": …, "sentence_bad": …}                             BLiMP

`training.tasks` evaluates a model on them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from groundup.errors import DataError
from groundup.runtime import count_of
from groundup.text_files import Source, find_sources
from groundup.text_files.records import read_records


class Question(NamedTuple):
    """A context and several continuations of it."""

    context: str
    """May be empty: then the choices are whole texts."""
    choices: tuple[str, ...]
    answer: int
    """The index of the correct choice."""

    def continuation(self, index: int) -> str:
        """Return a choice with a leading space, unless it or the context supplies white space.

        As in lm-evaluation-harness, a choice without context gets the space too.
        """
        choice = self.choices[index]
        has_space = self.context[-1:].isspace() or choice[:1].isspace()
        return choice if has_space else f" {choice}"


@dataclass(frozen=True)
class Task:
    """A named set of questions, scored together."""

    name: str
    questions: tuple[Question, ...]

    @property
    def chance(self) -> float:
        """The expected accuracy of random guessing."""
        return sum(1 / len(question.choices) for question in self.questions) / len(self.questions)


def read_tasks(names: Sequence[str]) -> list[Task]:
    """Read one task per file of the given files, folders or globs.

    A task is named after its file without suffixes, or by its path if two files share a name.
    Raises DataError with file and line for a malformed question.
    """
    found = find_sources(names) if names else []
    files = [file for file in found if file.format == "json_lines" or file.path in names]
    if names and not files:
        raise DataError(f"{', '.join(names)} has no .jsonl files; tasks are JSON lines")
    stems = [Path(file).name.partition(".")[0] for file in files]
    return [
        Task(stem if stems.count(stem) == 1 else str(file), tuple(_read_file(file)))
        for file, stem in zip(files, stems, strict=True)
    ]


def _read_file(file: Source) -> list[Question]:
    questions = []
    for where, record in read_records(file, "json_lines"):
        if isinstance(record, DataError):
            raise record
        try:
            questions.append(_question_of(record))
        except DataError as error:
            raise DataError(f"{where}: {error}") from None
    if not questions:
        raise DataError(f"{file} has no questions; write one JSON object per line")
    return questions


def _question_of(record: Any) -> Question:
    if not isinstance(record, dict):
        raise DataError(f"{json.dumps(record):.40} is not an object; fix the line")
    if "sentence_good" in record and "sentence_bad" in record:
        pair = [record["sentence_good"], record["sentence_bad"]]
        return _checked(Question("", _texts(pair, "a sentence"), 0))
    for name in ("context", "choices", "answer"):
        if name not in record:
            raise DataError(
                f"no field {name} (fields: {', '.join(record) or 'none'}); a question needs "
                f"context, choices and answer, or BLiMP's fields"
            )
    answer = record["answer"]
    if type(answer) is not int:
        shown = json.dumps(answer)[:60]
        raise DataError(f"answer must be the index of the correct choice, from 0, got {shown}")
    (context,) = _texts([record["context"]], "context")
    return _checked(Question(context, _texts(record["choices"], "choices"), answer))


def _checked(question: Question) -> Question:
    count = len(question.choices)
    if count < 2:
        raise DataError(f"{count_of(count, 'choice')}; a question needs at least 2")
    if not 0 <= question.answer < count:
        raise DataError(f"answer {question.answer} must be from 0 to {count - 1}, a choice's index")
    if not all(choice.strip() for choice in question.choices):
        raise DataError("one of the choices is empty; give it some text")
    return question


def _texts(values: Any, name: str) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise DataError(f"{name} must be text, or a list of texts, got {json.dumps(values):.60}")
    return tuple(values)
