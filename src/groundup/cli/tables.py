"""Results on the screen: a table with rich on a terminal, aligned plain lines everywhere else."""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

# Neighbouring tokens take neighbouring colours, so that each boundary shows.
_COLOURS = ("black on cyan", "black on yellow", "black on green", "black on magenta")


def print_table(title: str, headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows of text; the first column is left-aligned, the others right.

    title: the line above the table.
    headers: the names of the columns; empty for a table without a head.
    rows: the cells as text.
    """
    show = _print_rich if sys.stdout.isatty() else _print_plain
    show(title, headers, [list(row) for row in rows])


def print_results(title: str, results: Iterable[tuple[str, str]]) -> None:
    """Print named values, one a line."""
    print_table(title, (), results)


def show_token(token: bytes) -> str:
    """A token for the eye: its text in quotes, or its bytes where they are not text."""
    try:
        return repr(token.decode())
    except UnicodeDecodeError:
        return repr(token)


def colour_tokens(tokens: Sequence[bytes]) -> "Text":
    """Tokens in a line, each in another colour than its neighbours; bars off a terminal."""
    from rich.text import Text

    from groundup.tokenizer.byte_spelling import spell_bytes

    line = Text()
    for index, token in enumerate(tokens):
        try:
            shown = "".join(map(show_character, token.decode()))
        except UnicodeDecodeError:
            shown = spell_bytes(token)
        if index:
            line.append(" " if sys.stdout.isatty() else " | ")
        line.append(shown, style=_COLOURS[index % len(_COLOURS)])
    return line


def show_character(character: str) -> str:
    """A character for the eye: spaces and controls are made visible."""
    if character == " ":
        return "␠"
    return character if character.isprintable() else repr(character)[1:-1]


def _print_rich(title: str, headers: Sequence[str], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", show_header=bool(headers), box=None)
    num_columns = len(headers) or max((len(row) for row in rows), default=0)
    for column in range(num_columns):
        table.add_column(
            headers[column] if headers else "",
            justify="right" if column and headers else "left",
            style="" if column else "cyan",
            # A number without its last digits would be another number.
            overflow="fold",
        )
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


def _print_plain(title: str, headers: Sequence[str], rows: list[list[str]]) -> None:
    print(title)
    lines = [list(headers), *rows] if headers else rows
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)] if lines else []
    for line in lines:
        cells = [line[0].ljust(widths[0])]
        for cell, width in zip(line[1:], widths[1:], strict=True):
            cells.append(cell.rjust(width) if headers else cell)
        print(("  " + "  ".join(cells)).rstrip())
