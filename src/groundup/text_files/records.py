"""Records: JSON lines, the items of a JSON list or the rows of a table; and the conversations in
them, in the shapes common in datasets.

The text of a record is the requested field, else a usual one, else its conversation, else the field
with the longest texts in the first records of the file.
"""

import csv
import io
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

from groundup.errors import DataError
from groundup.runtime import count_of
from groundup.text_files.documents import NO_TEXT, Reading, Source, encode
from groundup.text_files.encodings import as_utf8, guess_encoding
from groundup.text_files.opening import open_source, stream_of

MAX_RECORD_BYTES = 256 << 20
"""Limited because parsing holds several copies of a record."""
_DELIMITERS = ",\t;|"
_USUAL_FIELDS = ("text", "content", "body")
TURNS = "\0turns"
"""Stands for the fields that make up a conversation."""
# How much of a file is searched for the field with the longest texts.
_NUM_SEEN, _SEEN_BYTES = 64, 1 << 20

SHAPES = (
    "messages (role and content), conversations (from and value), instruction, input and output, "
    "or a pair such as prompt and completion, question and answer, or input and output; for DPO "
    "prompt, chosen and rejected"
)
"""For error messages."""

_LISTS = ("messages", "conversations", "conversation", "dialogue", "dialog")
_ROLES = {
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bot", "model"), "assistant"),
}
_QUESTIONS = ("prompt", "instruction", "question", "query", "input", "user", "human")
_ANSWERS = ("completion", "response", "output", "answer", "reply", "assistant", "gpt")
# Fields with the context of a question.
_CONTEXTS = ("input", "context")

# A record's location for error messages, and its value: a DataError if it cannot be parsed.
Record = tuple[str, Any]


def read_texts(
    kind: str, stream: IO[bytes], reading: Reading, name: str, notes: list[str]
) -> Iterator[bytes]:
    """Yield the text of each record of a stream; notes the first that is skipped."""
    records = _read_records(kind, stream, name, reading.field)
    head: list[Record] = []
    size = 0
    while size < _SEEN_BYTES and len(head) < _NUM_SEEN and (item := next(records, None)):
        head.append(item)
        size += len(str(item[1]))
    longest = longest_field(record for _, record in head if isinstance(record, dict))
    num_bad = 0
    for where, record in itertools.chain(head, records):
        if where == name and find_turns(record) is None:
            notes.append("not a list of records")
            return
        try:
            yield encode(_text_of(record, reading, longest, where), reading.errors, where)
        except DataError as error:
            if reading.errors != "skip":
                raise
            num_bad += 1
            if num_bad == 1:
                reason = str(error).removeprefix(name).removesuffix(", or use --errors skip")
                notes.append(reason.strip())
            yield NO_TEXT


def read_records(source: Source, kind: str) -> Iterator[Record]:
    """Yield the records of a file in any encoding, with their locations.

    The value of a malformed record is a DataError. JSON other than a list is a single record.
    """
    with open_source(source) as (stream, _):
        utf8 = stream_of(as_utf8(stream, source, Reading(), [], guess_encoding, True))
        records = _read_records(kind, utf8, str(source), "", 8 * MAX_RECORD_BYTES)
        for where, record in records:
            try:
                json.dumps(record, ensure_ascii=False, default=str).encode()
                yield where, record
            except UnicodeEncodeError:
                yield where, DataError(f"{where} has text that is not UTF-8; fix the line")


def has_usual_field(source: Source, reading: Reading) -> bool:
    """Whether the first line alone shows which field contains the text."""
    with open_source(source) as (stream, _):
        for _, record in _read_lines(stream, str(source)):
            if isinstance(record, dict):
                return choose_field(record, reading.field, None) is not None
    return True


def choose_field(record: Mapping[str, Any], wanted: str, longest: str | None) -> str | None:
    """Return the field of a record that contains its text, or TURNS; None if there is none."""
    if wanted in record:
        return wanted
    names = {name.strip().lower(): name for name in record if isinstance(record[name], str)}
    if usual := next((names[one] for one in _USUAL_FIELDS if one in names), None):
        return usual
    return TURNS if find_turns(record) else longest


def longest_field(records: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the field with the longest texts. Single ASCII words count less: they may be URLs."""
    sizes = Counter[str]()
    for record in records:
        for name, value in record.items():
            if isinstance(value, str) and any(map(str.isalpha, value[:1000])):
                is_word = value.isascii() and " " not in value
                sizes[name] += len(value) if is_word else 100 * len(value)
    return max(sizes, key=sizes.__getitem__, default=None)


def _text_of(record: Any, reading: Reading, longest: str | None, where: str) -> str:
    if isinstance(record, DataError):
        raise record
    value, turns = record, find_turns(record) if isinstance(record, list) else None
    if isinstance(record, dict):
        field = choose_field(record, reading.field, longest)
        if field is None or field not in {*record, TURNS}:
            fields = ", ".join(map(str, record)) or "none"
            raise DataError(
                f"{where} has no field {reading.field} (fields: {fields:.200}); set --field"
            )
        value = record.get(field)
        turns = find_turns(record if field == TURNS else value)
    text = text_of_turns(turns) if turns else value
    if not isinstance(text, str):
        raise DataError(
            f"{where} holds {json.dumps(value):.40}, not text; fix it, or use --errors skip"
        )
    return text


def _read_records(
    kind: str, stream: IO[bytes], name: str, field: str, max_bytes: int | None = None
) -> Iterator[Record]:
    if kind == "json_lines":
        return _read_lines(stream, name)
    if kind == "delimited":
        return _read_table(stream, name, field)
    return _read_json(stream, name, max_bytes or MAX_RECORD_BYTES)


def _read_lines(stream: IO[bytes], name: str) -> Iterator[Record]:
    lines = iter(lambda: stream.readline(MAX_RECORD_BYTES + 1), b"")
    for number, line in enumerate(lines, start=1):
        where = f"{name} line {number}"
        if len(line) > MAX_RECORD_BYTES:
            raise DataError(f"{where} is longer than {MAX_RECORD_BYTES:,} bytes")
        if not line.isspace():
            try:
                yield where, json.loads(line.decode("utf-8-sig", "surrogateescape"))
            except (ValueError, RecursionError) as error:
                yield where, DataError(f"{where} is not JSON: {error}; fix the line")


def _read_json(stream: IO[bytes], name: str, max_bytes: int) -> Iterator[Record]:
    """Yield the records of a JSON list, or of JSON lines with the suffix .json."""
    data = stream.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise DataError(f"{name} has more than {max_bytes:,} bytes; write it as JSON lines")
    try:
        whole = json.loads(data.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        yield from _read_lines(io.BytesIO(data), name)
        return
    first = whole[0] if isinstance(whole, list) and whole else None
    is_turn = isinstance(first, dict) and {"role", "content"} <= first.keys()
    if is_turn or not isinstance(whole, list):
        yield name, whole
    else:
        for number, record in enumerate(whole, start=1):
            yield f"{name} record {number}", record


def _read_table(stream: IO[bytes], name: str, field: str) -> Iterator[Record]:
    """Yield the rows of a CSV table; its first line shows the columns and the delimiter."""
    lines = io.TextIOWrapper(stream, "utf-8", errors="surrogateescape", newline="")
    try:
        header = lines.readline()
        encode(header, "strict", f"{name} line 1")
        found: list[tuple[bool, bool, int, str, list[str]]] = []
        for one in _DELIMITERS:
            reader = csv.reader([header], delimiter=one, strict=True)
            columns = _next_row(reader, f"{name} line 1") or []
            is_chat = find_turns(dict.fromkeys(columns, "")) is not None
            found.append((field in columns, is_chat, len(columns), one, columns))
        *_, delimiter, columns = max(found)
        rows = csv.reader(lines, delimiter=delimiter, strict=True)
        while True:
            where = f"{name} line {rows.line_num + 2}"
            try:
                row = _next_row(rows, where)
            except DataError as error:
                yield where, error
                continue
            if row is None:
                return
            if len(row) == len(columns):
                yield where, dict(zip(columns, row, strict=True))
            elif row:
                counts = f"{count_of(len(row), 'column')} instead of {len(columns)}"
                yield where, DataError(f"{where} has {counts}; fix the line, or quote its commas")
    finally:
        lines.detach()


def _next_row(rows: Any, where: str) -> list[str] | None:
    # The csv module's limit, 128 kB per value, is global to the process.
    limit = csv.field_size_limit(MAX_RECORD_BYTES)
    try:
        row: list[str] | None = next(rows, None)
        return row
    except csv.Error as error:
        raise DataError(f"{where} cannot be read: {error} (is a quote open?); fix it") from error
    finally:
        csv.field_size_limit(limit)


def find_turns(record: Any) -> list[Any] | None:
    """Return the turns of a conversation, each with role and content; None if it is not one.

    Only checks the shape: a turn may have an unknown role, or content that is not text. A final
    user turn, which has no answer, is dropped.
    """
    if isinstance(record, list) and all(isinstance(one, Mapping) for one in record):
        record = {"messages": record}
    if not isinstance(record, Mapping):
        return None
    fields = {str(name).strip().lower(): value for name, value in record.items()}
    turns: list[Any] = []
    if isinstance(mapping := fields.get("mapping"), Mapping):
        # ChatGPT's export: a tree of messages in the order of writing, some of them empty.
        nodes = (one.get("message") for one in mapping.values() if isinstance(one, Mapping))
        turns = [one for one in map(_turn, nodes) if isinstance(one, dict) and one["content"]]
    elif listed := next((name for name in _LISTS if isinstance(fields.get(name), list)), None):
        turns = [_turn(one) for one in fields[listed]]
    else:
        question = next((name for name in _QUESTIONS if name in fields), None)
        answer = next((name for name in _ANSWERS if name in fields), None)
        if question is None or answer is None:
            return None
        asked, about = fields[question], [fields.get(one) for one in _CONTEXTS if one != question]
        if isinstance(asked, str):
            asked = "\n\n".join([asked, *(one for one in about if one and isinstance(one, str))])
        for role, value in (("user", asked), ("assistant", fields[answer])):
            turns += value if isinstance(value, list) else [{"role": role, "content": value}]
    system = fields.get("system") or fields.get("system_prompt")
    if system and isinstance(system, str):
        turns.insert(0, {"role": "system", "content": system})
    if len(turns) > 1 and isinstance(turns[-1], Mapping) and turns[-1].get("role") == "user":
        turns.pop()
    return turns


def find_pair(record: Any) -> list[list[Any] | None] | None:
    """Return the turns with the answer in `chosen`, and with the one in `rejected`; None without
    both fields. Each holds an answer, its turns, or a whole conversation."""
    if not isinstance(record, Mapping):
        return None
    fields = {str(name).strip().lower(): value for name, value in record.items()}
    sides = [fields.pop(name, None) for name in ("chosen", "rejected")]
    return None if None in sides else [_answered(fields, answer) for answer in sides]


def _answered(fields: dict[str, Any], answer: Any) -> list[Any] | None:
    turns = answer if isinstance(answer, list) else [{"role": "assistant", "content": answer}]
    turns = list(map(_turn, turns))
    listed = next((fields[one] for one in _LISTS if isinstance(fields.get(one), list)), None)
    if any(isinstance(one, dict) and one["role"] == "user" for one in turns):
        listed = []
    if listed is None:
        return find_turns({**fields, _ANSWERS[0]: turns})
    return find_turns({**fields, _LISTS[0]: [*listed, *turns]})


def text_of_turns(turns: list[Any]) -> str:
    """Format a conversation as plain text, with a paragraph "Role: content" per turn."""
    said = (
        one for one in turns if isinstance(one, Mapping) and isinstance(one.get("content"), str)
    )
    return "\n\n".join(f"{str(one.get('role')).capitalize()}: {one['content']}" for one in said)


def _turn(turn: Any) -> Any:
    if not isinstance(turn, Mapping):
        return turn
    author = turn.get("author")
    role = author.get("role") if isinstance(author, Mapping) else turn.get("role", turn.get("from"))
    if isinstance(role, str):
        role = _ROLES.get(role.lower(), role.lower())
    content = turn.get("content", turn.get("value"))
    content = content.get("parts") if isinstance(content, Mapping) else content
    if isinstance(content, list):
        # Parts such as {"type": "text", "text": …}; images are left out.
        texts = (one.get("text") if isinstance(one, Mapping) else one for one in content)
        content = "\n\n".join(one for one in texts if isinstance(one, str))
    return {"role": role, "content": content}
