"""The terminal: streams that take whatever is printed, tables, coloured tokens, progress bars."""

import codecs
import contextlib
import io
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

    from groundup.runtime import Progress

# Adjacent tokens differ in colour, so that each boundary shows.
_COLOURS = ("black on cyan", "black on yellow", "black on green", "black on magenta")
DELAY_SECONDS = 2.0


def prepare_streams() -> None:
    """Open closed streams on /dev/null, and let no character be an error on the others.

    The number of a closed stream would go to the next file opened, and libraries that print would
    write into it. The C locale names no encoding: UTF-8 is used.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            _open_null(number)
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
        elif name != "stdin" and isinstance(stream, io.TextIOWrapper):
            is_ascii = codecs.lookup(stream.encoding).name == "ascii"
            errors = "replace" if name == "stdout" else "backslashreplace"
            stream.reconfigure(encoding="utf-8" if is_ascii else None, errors=errors)


def as_text(word: str) -> str:
    """A word of the command line as the UTF-8 that was typed, whatever the locale took it for."""
    return word.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _open_null(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        null = os.open(os.devnull, os.O_RDWR)
        if null != number:
            os.dup2(null, number)
            os.close(null)


def print_table(title: str, headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows of text: a rich table on a terminal, aligned plain lines everywhere else.

    The first column is left-aligned, the others right; without headers all are left-aligned.
    """
    show = _print_rich if sys.stdout.isatty() else _print_plain
    show(title, headers, [list(row) for row in rows])


def print_results(title: str, results: Iterable[tuple[str, str]]) -> None:
    """Print named values, one a line."""
    print_table(title, (), results)


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


def show_token(token: bytes) -> str:
    """A token in quotes: its text, or its bytes where they are not text."""
    try:
        return repr(token.decode())
    except UnicodeDecodeError:
        return repr(token)


def show_character(character: str) -> str:
    """A character with spaces and controls made visible."""
    if character == " ":
        return "␠"
    return character if character.isprintable() else repr(character)[1:-1]


def colour_tokens(tokens: Sequence[bytes]) -> "Text":
    """Tokens in a line, in alternating colours; with bars between them off a terminal."""
    from rich.text import Text

    from groundup.tokenizer.formats.spelling import spell_bytes

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


@contextlib.contextmanager
def progress_bar(label: str, unit: str = "B") -> Iterator["Progress"]:
    """Yield a callback that shows amount, rate and time left on stderr after two seconds.

    Off a terminal it shows nothing. `unit` "B" counts bytes; any other names what is counted.
    """
    from groundup.runtime import is_first_rank

    if not sys.stderr.isatty() or not is_first_rank():
        yield lambda done, total: None
        return
    import rich.progress as bar
    from rich.console import Console

    amount: list[bar.ProgressColumn] = [bar.DownloadColumn(), bar.TransferSpeedColumn()]
    if unit != "B":
        amount = [bar.MofNCompleteColumn(), bar.TextColumn(unit)]
    progress = bar.Progress(
        bar.TextColumn("{task.description}", markup=False),
        bar.BarColumn(bar_width=30),
        *amount,
        bar.TimeRemainingColumn(),
        console=Console(file=sys.stderr),
        transient=True,
    )
    task = progress.add_task(label, total=None)
    shown_from = time.monotonic() + DELAY_SECONDS

    def report(done: int, total: int | None) -> None:
        if not progress.live.is_started and time.monotonic() >= shown_from:
            progress.start()
        progress.update(task, completed=done, total=total)

    try:
        yield report
    finally:
        progress.stop()
