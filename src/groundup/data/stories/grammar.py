"""The machine that turns rules into text: it reads rules and tables, and expands them.

A rule has options, one of which is picked each time it is named. `{name}` expands a rule or gives
a bound word, `{this/that}` picks a part, `{^name}` capitalises, `{a name}` puts "a" or "an" before.
What the rules say is left to the other files of this folder.
"""

import re
from collections.abc import Callable, Mapping
from random import Random

Option = str | Callable[[Mapping[str, str]], str]
Rules = dict[str, tuple[Option, ...]]
Row = dict[str, str]

KINDS = ("child", "animal")

_VOWEL_SOUND = re.compile(r"(?!(?:uni|use|one\b|eu))(?:[aeiou]|hour|honest)", re.IGNORECASE)


class Grammar:
    """Rules and tables, one view of them for stories about children and one about animals."""

    def __init__(self) -> None:
        self.rules: dict[str, Rules] = {kind: {} for kind in KINDS}
        self.tables: dict[str, dict[str, tuple[Row, ...]]] = {kind: {} for kind in KINDS}
        self._choices: dict[tuple[str, ...], str] = {}

    def add_rules(self, text: str) -> None:
        """Read rules: `name: word, word` or `name` and then options that begin with `|`.

        `name @child` and `name @animal` hold only in stories of that kind.
        """
        for header, body in _split_blocks(text):
            name, _, words = header.partition(":")
            name, _, kind = name.strip().partition(" @")
            if words or ":" in header:
                options = [word.strip() for word in " ".join([words, *body]).split(",")]
            else:
                options = _join_lines(body, "|")
            self._store(name, tuple(self._compile(option) for option in options), kind)

    def add_table(self, text: str) -> None:
        """Read a table: `name: column | column`, then rows that begin with `-` and part at `|`."""
        ((header, body),) = _split_blocks(text)
        name, _, columns = header.partition(":")
        name, _, kind = name.partition(" @")
        keys = [column.strip() for column in columns.split("|")]
        rows = []
        for line in _join_lines(body, "-"):
            cells = [self._compile(cell.strip()) for cell in line.split("|")]
            if len(cells) != len(keys):
                raise ValueError(
                    f"table {name}: {len(cells)} cells for {len(keys)} columns: {line}"
                )
            rows.append(dict(zip(keys, cells, strict=True)))
        for one in (kind,) if kind else KINDS:
            self.tables[one][name] = tuple(rows)

    def _store(self, name: str, options: tuple[str, ...], kind: str = "") -> None:
        compiled: tuple[Option, ...] = tuple(
            option.format_map if "{" in option else option for option in options
        )
        for one in (kind,) if kind else KINDS:
            if name in self.rules[one]:
                raise ValueError(f"rule {name} is defined twice for {one}")
            self.rules[one][name] = compiled

    def _compile(self, text: str) -> str:
        """Turn choices written in place into rules of their own, so that only `{key}` remains."""
        pieces = []
        position = 0
        while (begin := text.find("{", position)) >= 0:
            pieces.append(text[position:begin])
            parts, position = _split_braces(text, begin)
            pieces.append("{" + (parts[0] if len(parts) == 1 else self._choice(parts)) + "}")
        return "".join(pieces) + text[position:]

    def _choice(self, parts: list[str]) -> str:
        options = tuple(self._compile(part) for part in parts)
        if options not in self._choices:
            self._choices[options] = key = f"#{len(self._choices)}"
            self._store(key, options)
        return self._choices[options]


class Scene(dict[str, str]):
    """One story in the making: the words bound so far; every other name is drawn from the rules.

    Inside one story a rule gives no option twice before it has given them all.
    """

    def __init__(self, grammar: Grammar, random: Random) -> None:
        super().__init__()
        self._grammar = grammar
        self._draw = random.random
        self._rules: Rules = {}
        self._tables: dict[str, tuple[Row, ...]] = {}
        self._used: dict[str, int] = {}

    def start(self, kind: str) -> None:
        """Forget everything bound and use the rules of this kind of story."""
        self.clear()
        self._used.clear()
        self._rules = self._grammar.rules[kind]
        self._tables = self._grammar.tables[kind]

    def index(self, count: int) -> int:
        """A number below `count`, from random() alone: its stream is the same in every Python."""
        return int(self._draw() * count)

    def bind(self, words: Mapping[str, str]) -> None:
        """Fix words for the rest of the story, expanding what they name."""
        for key, value in words.items():
            self[key] = value.format_map(self) if "{" in value else value

    def bind_row(self, table: str) -> None:
        """Fix the words of one row of a table."""
        rows = self._tables[table]
        self.bind(rows[self.index(len(rows))])

    def __missing__(self, key: str) -> str:
        options = self._rules.get(key)
        if options is None:
            return self._modify(key)
        count = len(options)
        index = int(self._draw() * count)
        used = self._used.get(key, 0)
        if used >> index & 1:
            if used == (1 << count) - 1:
                used = 0
            while used >> index & 1:
                index = index + 1 if index + 1 < count else 0
        self._used[key] = used | 1 << index
        option = options[index]
        return option if isinstance(option, str) else option(self)

    def _modify(self, key: str) -> str:
        if key.startswith("^"):
            text = self[key[1:]]
            return text[:1].upper() + text[1:]
        if key.startswith("a "):
            text = self[key[2:]]
            return ("an " if _VOWEL_SOUND.match(text) else "a ") + text
        raise KeyError(key)


def _split_blocks(text: str) -> list[tuple[str, list[str]]]:
    blocks: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if not line.strip():
            continue
        if line[0].isspace() or line[0] in "|-":
            blocks[-1][1].append(line.strip())
        else:
            blocks.append((line.strip(), []))
    return blocks


def _join_lines(lines: list[str], mark: str) -> list[str]:
    joined: list[str] = []
    for line in lines:
        if line.startswith(mark):
            joined.append(line[1:].strip())
        else:
            joined[-1] = f"{joined[-1]} {line}".strip()
    return joined


def _split_braces(text: str, begin: int) -> tuple[list[str], int]:
    """The parts between `/` of the braces that open at `begin`, and the place after their end."""
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
    raise ValueError(f"braces never close: {text[begin:]}")
