"""Generate texts from a grammar: rules in editable plain text files, expanded at random.

`stories/README.md` describes the files. Expanding a rule samples one of its options, without
repetition within a text until all have been used; `pick` and `let` fix words for the rest of a
text. If rules or tables have tags, each text gets a random tag.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

Option = str | Callable[["Expansion"], str]
Row = dict[str, Option]

_HEADER = re.compile(r"(table )?(\w+)(?: @(\w+))?(?::(.*))?")
_BINDING = re.compile(r"pick (\w+)|let (\w+) = ?(.*)")
_VOWEL_SOUND = re.compile(r"(?!(?:uni|use|one\b|eu))(?:[aeiou]|hour|honest)", re.IGNORECASE)


@dataclass
class _Block:
    """A parsed rule or table; `columns` is empty for a rule."""

    name: str
    tag: str
    columns: list[str]
    options: list[str]
    bindings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _View:
    """The rules and tables for texts with one tag."""

    rules: dict[str, tuple[Option, ...]] = field(default_factory=dict)
    tables: dict[str, tuple[Row, ...]] = field(default_factory=dict)


class Grammar:
    """Compiled rules and tables, from the texts of files by name.

    The files are part of the package, so a mistake in them raises a plain KeyError.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        blocks = [block for text in files.values() for block in _read_blocks(text)]
        tags = sorted({block.tag for block in blocks} - {""})
        self._views = {tag: _View() for tag in tags or [""]}
        self._num_hidden = 0
        self._choices: dict[tuple[str, ...], str] = {}
        for block in blocks:
            views = [self._views[block.tag]] if block.tag else list(self._views.values())
            for view in views:
                assert block.name not in (view.tables if block.columns else view.rules), block.name
            if block.columns:
                rows = [
                    [self._compile(cell.strip()) for cell in one.split("|")]
                    for one in block.options
                ]
                table = tuple(dict(zip(block.columns, cells, strict=True)) for cells in rows)
                for view in views:
                    view.tables[block.name] = table
                continue
            options = tuple(map(self._compile, block.options))
            if block.bindings:
                tables = list(map(self._bind, block.bindings))
                options = tuple(_with_bindings(tables, option) for option in options)
            for view in views:
                view.rules[block.name] = options

    @classmethod
    def read(cls, *folders: Path) -> "Grammar":
        """Read all `.txt` files of the given folders."""
        paths = [path for folder in folders for path in sorted(folder.glob("*.txt"))]
        return cls({path.name: path.read_text("utf-8") for path in paths})

    def expansions(self, seed: int) -> Iterator["Expansion"]:
        """Yield endless texts, the same for a seed on every machine and Python version."""
        random = Random(seed).random
        views = list(self._views.values())
        while True:
            view = views[int(random() * len(views))]
            yield Expansion(view, random)

    def _bind(self, text: str) -> str:
        """Return the table of a `pick` line, or of a `let` line a new table with one row."""
        match = _BINDING.fullmatch(text)
        assert match is not None
        table, name, value = match.groups()
        if table is None:
            self._num_hidden += 1
            table = f"_table_{self._num_hidden}"
            for view in self._views.values():
                view.tables[table] = ({name: self._compile(value)},)
        return str(table)

    def _compile(self, text: str) -> Option:
        """Turn choices in braces into rules of their own, so that only `{name}` remains."""
        template, position = "", 0
        while (begin := text.find("{", position)) >= 0:
            template += text[position:begin]
            parts, position = _split_braces(text, begin)
            key = parts[0] if len(parts) == 1 else self._choice(tuple(parts))
            template += "{" + key + "}"
        template += text[position:]
        return template.format_map if position else template

    def _choice(self, parts: tuple[str, ...]) -> str:
        if parts not in self._choices:
            self._choices[parts] = f"_choice_{len(self._choices)}"
            options = tuple(map(self._compile, parts))
            for view in self._views.values():
                view.rules[self._choices[parts]] = options
        return self._choices[parts]


class Expansion(dict[str, str]):
    """The words fixed so far in one text; looking up any other name expands its rule."""

    __slots__ = ("_random", "_rules", "_tables", "_used")

    def __init__(self, view: _View, random: Callable[[], float]) -> None:
        super().__init__()
        self._rules = view.rules
        self._tables = view.tables
        self._random = random
        self._used: dict[str, int] = {}

    def expand(self, rule: str) -> str:
        """Expand a rule into paragraphs; words that it fixes stay fixed for the next call."""
        text = self[rule]
        # Empty options leave their surrounding spaces.
        while "  " in text:
            text = text.replace("  ", " ")
        return "\n\n".join(filter(None, (part.strip() for part in text.split("¶"))))

    def pick(self, table: str) -> None:
        """Fix the words of a random row of a table."""
        rows = self._tables[table]
        # Only random(): its stream is the same in every Python version.
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
        raise KeyError(name)


def _with_bindings(tables: list[str], option: Option) -> Option:
    def expand(expansion: Expansion) -> str:
        for table in tables:
            expansion.pick(table)
        return option if isinstance(option, str) else option(expansion)

    return expand


def _read_blocks(text: str) -> list[_Block]:
    blocks: list[_Block] = []
    # An indented line continues the one before it.
    for line in re.sub(r"\n[ \t]+(?=\S)", " ", re.sub(r"(?m)^#.*\n?", "", text)).splitlines():
        line = line.strip()
        if line.startswith("-"):
            blocks[-1].options.append(line[1:].strip())
        elif _BINDING.fullmatch(line):
            blocks[-1].bindings.append(line)
        elif line:
            blocks.append(_read_header(line))
    return blocks


def _read_header(line: str) -> _Block:
    match = _HEADER.fullmatch(line)
    assert match is not None, line
    table, name, tag, words = match.groups()
    parts = [part.strip() for part in (words or "").split("|" if table else ",")]
    options = parts if words and not table else []
    return _Block(name, tag or "", parts if table else [], options)


def _split_braces(text: str, begin: int) -> tuple[list[str], int]:
    """Split the braces opened at `begin` at each `/`; returns the parts and the next position."""
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
    raise AssertionError(f"braces never close: {text[begin:]}")
