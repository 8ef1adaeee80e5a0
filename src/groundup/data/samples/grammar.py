"""Texts out of a grammar: rules in plain files that a person can edit, expanded by a seed.

A file holds rules and tables; lines that begin with `#` are comments, and an indented line
continues the one before it.

    weather: sunny, windy, cool          a rule of single words or short phrases

    greeting                             a rule with one option a line; one is chosen each time
    - "Good {morning/evening}," said {hero}. It was {a weather} day.
    - {^weather} days are best.

    table lost: thing | found            a table: columns, then rows
    - toy train | under the stove
    - {color} ball | in the hedge

    story                                a rule that fixes words for the rest of the text:
    pick lost                            one row of a table, here {thing} and {found},
    let moral = {morals}                 or one word
    - {hero} lost {his} {thing}. ¶ It lay {found}.

`{name}` stands for a fixed word or an option of a rule, `{this/that/}` for one of its parts, which
may be empty, `{^name}` begins with a capital, `{a name}` puts "a" or "an" in front. `¶` begins a
paragraph. Who tells of a hero picks name and pronouns from one row, so that they agree.

Inside one text a rule gives no option twice before it has given all, so two people whose names
come from the same rule have two names. `home @animal` holds only in texts tagged `animal`; where
there are tags, each text gets one of them by chance.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple, TypeVar

from groundup.errors import DataError

Option = str | Callable[["Telling"], str]
Row = dict[str, Option]
Value = TypeVar("Value")

_HEADER = re.compile(r"(table )?(\w+)(?: @(\w+))?(?::(.*))?")
_BINDING = re.compile(r"pick (\w+)|let (\w+) = ?(.*)")
_REFERENCE = re.compile(r"\^?(?:a )?(\w+)")
_VOWEL_SOUND = re.compile(r"(?!(?:uni|use|one\b|eu))(?:[aeiou]|hour|honest)", re.IGNORECASE)


class _Line(NamedTuple):
    """A line together with the indented ones that continue it."""

    where: str
    text: str


@dataclass(frozen=True)
class _Block:
    """A rule or a table as it stands in its file; `columns` is empty for a rule."""

    where: str
    name: str
    tag: str
    columns: list[str]
    options: list[_Line]
    bindings: list[_Line] = field(default_factory=list)


@dataclass(frozen=True)
class _View:
    """All that holds in texts of one tag."""

    rules: dict[str, tuple[Option, ...]] = field(default_factory=dict)
    tables: dict[str, tuple[Row, ...]] = field(default_factory=dict)


class Grammar:
    """Rules and tables, ready to be expanded.

    `files` maps names to the texts of files that make up one grammar; a DataError names the file
    and line of a mistake.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        blocks = [block for name, text in files.items() for block in _read_blocks(name, text)]
        tags = sorted({block.tag for block in blocks} - {""})
        self._views = {tag: _View() for tag in tags or [""]}
        self._choices: dict[tuple[str, ...], str] = {}
        self._references: dict[str, str] = {}
        self._picks: dict[str, str] = {}
        for block in blocks:
            add = self._add_table if block.columns else self._add_rule
            add(block)
        self._check_names()

    @classmethod
    def read(cls, *folders: Path) -> "Grammar":
        """The grammar of all `.txt` files of some folders."""
        paths = [path for folder in folders for path in sorted(folder.glob("*.txt"))]
        return cls({path.name: path.read_text("utf-8") for path in paths})

    def tellings(self, seed: int) -> Iterator["Telling"]:
        """Texts to be told, without end; the same for a seed on every machine and Python."""
        random = Random(seed).random
        views = list(self._views.values())
        while True:
            view = views[int(random() * len(views))]
            yield Telling(view, random)

    def _add_rule(self, block: _Block) -> None:
        if not block.options:
            raise DataError(f"{block.where}: rule {block.name} has no options")
        options = tuple(self._compile(*option) for option in block.options)
        if block.bindings:
            tables = [self._bind(*binding) for binding in block.bindings]
            options = tuple(_with_bindings(tables, option) for option in options)
        for view in self._views_of(block.tag):
            _define(view.rules, block.name, options, block.where)

    def _add_table(self, block: _Block) -> None:
        rows = []
        for where, text in block.options:
            cells = [self._compile(where, cell.strip()) for cell in text.split("|")]
            if len(cells) != len(block.columns):
                raise DataError(f"{where}: {len(cells)} cells for {len(block.columns)} columns")
            rows.append(dict(zip(block.columns, cells, strict=True)))
        for view in self._views_of(block.tag):
            _define(view.tables, block.name, tuple(rows), block.where)

    def _bind(self, where: str, text: str) -> str:
        """The table that a `pick` or `let` line takes a row from."""
        match = _BINDING.fullmatch(text)
        assert match is not None
        table, name, value = match.groups()
        if table is None:
            table = where
            for view in self._views.values():
                view.tables[table] = ({name: self._compile(where, value)},)
        self._picks.setdefault(table, where)
        return table

    def _views_of(self, tag: str) -> list[_View]:
        return [self._views[tag]] if tag else list(self._views.values())

    def _compile(self, where: str, text: str) -> Option:
        """Text with choices turned into rules of their own, so that only `{name}` remains."""
        template, position = "", 0
        while (begin := text.find("{", position)) >= 0:
            template += _plain(where, text[position:begin])
            parts, position = _split_braces(text, begin, where)
            key = parts[0] if len(parts) == 1 else self._choice(where, tuple(parts))
            self._references.setdefault(key, where)
            template += "{" + key + "}"
        template += _plain(where, text[position:])
        return template.format_map if position else template

    def _choice(self, where: str, parts: tuple[str, ...]) -> str:
        if parts not in self._choices:
            self._choices[parts] = f"_choice_{len(self._choices)}"
            options = tuple(self._compile(where, part) for part in parts)
            for view in self._views.values():
                view.rules[self._choices[parts]] = options
        return self._choices[parts]

    def _check_names(self) -> None:
        for view in self._views.values():
            fixed = {name for rows in view.tables.values() for row in rows for name in row}
            for reference, where in self._references.items():
                match = _REFERENCE.fullmatch(reference)
                if match is None or (match[1] not in view.rules and match[1] not in fixed):
                    raise DataError(f"{where}: nothing is called {{{reference}}}")
            for table, where in self._picks.items():
                if not view.tables.get(table):
                    raise DataError(f"{where}: unknown table {table}, or it has no rows")


class Telling(dict[str, str]):
    """One text in the making: the words fixed so far; any other name is sampled from its rule."""

    __slots__ = ("_random", "_rules", "_tables", "_used")

    def __init__(self, view: _View, random: Callable[[], float]) -> None:
        super().__init__()
        self._rules = view.rules
        self._tables = view.tables
        self._random = random
        self._used: dict[str, int] = {}

    def expand(self, rule: str) -> str:
        """The text of a rule, in paragraphs; the words that it fixes stay for the next call."""
        text = self[rule]
        # Options that came out empty leave their spaces behind.
        while "  " in text:
            text = text.replace("  ", " ")
        return "\n\n".join(filter(None, (part.strip() for part in text.split("¶"))))

    def pick(self, table: str) -> None:
        """Fix the words of one row of a table."""
        rows = self._tables[table]
        # From random() alone: its stream is the same in every Python.
        for name, option in rows[int(self._random() * len(rows))].items():
            self[name] = option if isinstance(option, str) else option(self)

    def __missing__(self, name: str) -> str:
        options = self._rules.get(name)
        if options is None:
            return self._modify(name)
        index = int(self._random() * len(options))
        used = self._used.get(name, 0)
        if used >> index & 1:
            if used == (1 << len(options)) - 1:
                used = 0
            while used >> index & 1:
                index = index + 1 if index + 1 < len(options) else 0
        self._used[name] = used | 1 << index
        option = options[index]
        return option if isinstance(option, str) else option(self)

    def _modify(self, name: str) -> str:
        if name[0] == "^":
            text = self[name[1:]]
            return text[:1].upper() + text[1:]
        if name[:2] == "a ":
            text = self[name[2:]]
            return ("an " if _VOWEL_SOUND.match(text) else "a ") + text
        raise DataError(f"{{{name}}} is used in a text where nothing has fixed it")


def _define(known: dict[str, Value], name: str, value: Value, where: str) -> None:
    if name in known:
        raise DataError(f"{where}: {name} is defined twice")
    known[name] = value


def _with_bindings(tables: list[str], option: Option) -> Option:
    def expand(telling: Telling) -> str:
        for table in tables:
            telling.pick(table)
        return option if isinstance(option, str) else option(telling)

    return expand


def _read_blocks(file: str, text: str) -> list[_Block]:
    blocks: list[_Block] = []
    for line in _join_lines(file, text):
        is_option = line.text.startswith("-")
        if not is_option and _BINDING.fullmatch(line.text) is None:
            blocks.append(_read_header(line))
        elif not blocks:
            raise DataError(f"{line.where}: the file must begin with the name of a rule or table")
        elif is_option:
            blocks[-1].options.append(_Line(line.where, line.text[1:].strip()))
        else:
            blocks[-1].bindings.append(line)
    return blocks


def _read_header(line: _Line) -> _Block:
    match = _HEADER.fullmatch(line.text)
    if match is None:
        raise DataError(f"{line.where}: {line.text!r:.60} names no rule or table")
    table, name, tag, words = match.groups()
    parts = [part.strip() for part in (words or "").split("|" if table else ",")]
    columns = parts if table else []
    options = [_Line(line.where, part) for part in parts] if words and not table else []
    return _Block(line.where, name, tag or "", columns, options)


def _join_lines(file: str, text: str) -> list[_Line]:
    lines: list[_Line] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        if line[0].isspace() and lines:
            lines[-1] = lines[-1]._replace(text=f"{lines[-1].text} {line.strip()}")
        else:
            lines.append(_Line(f"{file} line {number}", line.strip()))
    return lines


def _plain(where: str, text: str) -> str:
    if "}" in text:
        raise DataError(f"{where}: a brace closes that was never opened: {text!r:.60}")
    return text


def _split_braces(text: str, begin: int, where: str) -> tuple[list[str], int]:
    """The parts between `/` of the braces that open at `begin`, and the position after them."""
    parts = [""]
    depth = 0
    for position in range(begin + 1, len(text)):
        letter = text[position]
        if letter == "}" and depth == 0:
            return parts, position + 1
        depth += (letter == "{") - (letter == "}")
        if letter == "/" and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    raise DataError(f"{where}: braces never close: {text[begin:]!r:.60}")
