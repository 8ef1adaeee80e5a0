"""Tasks by name: built-in ones, and JSON-lines files in formats that their fields tell apart.

{"context": …, "choices": […], "answer": i}                         ours; i counts from 0
{"sentence_good": …, "sentence_bad": …}                             BLiMP
{"ctx": …, "endings": […], "label": i}                              HellaSwag
"""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from groundup.data.tasks.agreement import agreement
from groundup.data.tasks.question import Question, Task
from groundup.errors import DataError, did_you_mean
from groundup.runtime import count_of
from groundup.text_files import STDIN, Source, find_sources
from groundup.text_files.records import read_objects

BUILT_IN: dict[str, Callable[[], Task]] = {"agreement": agreement}
"""What makes each of the tasks that need no file."""

_MARK = re.compile(r"\[.*?\]")


class _BadLine(Exception):
    pass


def read_tasks(names: Sequence[str]) -> list[Task]:
    """The tasks of these names, each once: built-in ones, files, folders or globs.

    A task is called like its file without suffixes, or by its path where two files share a name.
    A mistake in a file is a DataError with file and line.

    names: as typed. A file that is called like a built-in task is named with a folder: ./agreement.
    """
    built_in = [name for name in dict.fromkeys(names) if name in BUILT_IN]
    others = [name for name in names if name not in BUILT_IN]
    files = dict.fromkeys(file for name in others for file in _task_files(name))
    stems = [*built_in, *(Path(file).name.partition(".")[0] for file in files)]
    tasks = [BUILT_IN[name]() for name in built_in]
    for file, stem in zip(files, stems[len(built_in) :], strict=True):
        name = stem if stems.count(stem) == 1 else str(file)
        tasks.append(Task(name, tuple(_read_file(file))))
    return tasks


def _task_files(name: str) -> list[Source]:
    if name == STDIN:
        raise DataError("tasks cannot be read from standard input: name a file")
    try:
        files = find_sources([name])
    except DataError as error:
        if Path(name).exists() or Path(name).suffix or "/" in name:
            raise
        raise DataError(
            f"task {name} is neither a file nor built in: {did_you_mean(name, BUILT_IN)}"
        ) from error
    if len(files) == 1 and not Path(name).is_dir():
        return files
    lines = [file for file in files if file.format == "json_lines"]
    if not lines:
        raise DataError(f"{name} has no .jsonl files; tasks are JSON lines")
    return lines


def _read_file(file: Source) -> list[Question]:
    questions = []
    for where, record in read_objects(file):
        try:
            questions.append(_question_of(record))
        except _BadLine as error:
            raise DataError(f"{where}: {error}") from None
    if not questions:
        raise DataError(f"{file} has no questions; each line of a task must be a JSON object")
    return questions


def _question_of(record: dict[str, Any]) -> Question:
    if "sentence_good" in record and "sentence_bad" in record:
        good, bad = (_text(record, name) for name in ("sentence_good", "sentence_bad"))
        return _checked(Question("", (good, bad), 0))
    if "endings" in record and "ctx" in record:
        endings = tuple(map(_without_marks, _texts(record, "endings")))
        return _checked(Question(_hellaswag_context(record), endings, _index(record, "label")))
    for name in ("context", "choices", "answer"):
        if name not in record:
            raise _BadLine(
                f"no field {name} (fields: {', '.join(record) or 'none'}); a question has context, "
                f"choices and answer, or BLiMP's or HellaSwag's fields"
            )
    choices = tuple(_texts(record, "choices"))
    return _checked(Question(_text(record, "context"), choices, _index(record, "answer")))


def _checked(question: Question) -> Question:
    count = len(question.choices)
    if count < 2:
        raise _BadLine(f"{count_of(count, 'choice')}; a question needs at least 2")
    if not 0 <= question.answer < count:
        raise _BadLine(f"answer {question.answer} is not one of the {count} choices, from 0 on")
    if not all(choice.strip() for choice in question.choices):
        raise _BadLine("one of the choices is empty; give it some text")
    return question


def _text(record: dict[str, Any], name: str) -> str:
    return _texts({name: [record[name]]}, name)[0]


def _texts(record: dict[str, Any], name: str) -> list[str]:
    values = record[name]
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise _BadLine(f"{name} must be text, or a list of texts, got {json.dumps(values):.60}")
    return values


def _index(record: dict[str, Any], name: str) -> int:
    """A number, or its digits: HellaSwag writes its labels as text."""
    value = record.get(name)
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}", value, re.ASCII):
        return int(value)
    if type(value) is not int:
        shown = json.dumps(value)[:60]
        raise _BadLine(f"{name} must be the index of the right choice, from 0, got {shown}")
    return value


def _hellaswag_context(record: dict[str, Any]) -> str:
    """As lm-evaluation-harness asks: the activity, and the two parts of the context."""
    if not all(isinstance(record.get(name), str) for name in ("activity_label", "ctx_a", "ctx_b")):
        return _without_marks(_text(record, "ctx"))
    context = f"{record['ctx_a']} {record['ctx_b'].capitalize()}"
    return _without_marks(f"{record['activity_label']}: {context}")


def _without_marks(text: str) -> str:
    """WikiHow's marks, such as [title] and [step], are not part of the text."""
    return _MARK.sub("", text.strip().replace(" [title]", ". ")).replace("  ", " ")
