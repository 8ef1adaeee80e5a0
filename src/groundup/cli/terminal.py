"""The terminal: robust streams, tables, progress bars."""

import codecs
import contextlib
import io
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from groundup.runtime import Progress


class _Terminal(io.TextIOWrapper):
    """A terminal without control sequences from foreign text."""

    def write(self, text: str) -> int:
        from groundup.runtime import escape_controls

        return super().write(escape_controls(text))


def prepare_streams() -> None:
    """Reopen closed streams on /dev/null, and make no character an error on the others.

    Otherwise the next file opened would get the descriptor of a closed stream, and libraries that
    print would write into it. In the C locale, UTF-8 is used.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            # It gets the lowest free descriptor, its own.
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            is_ascii = codecs.lookup(stream.encoding).name == "ascii"
            errors = "replace" if name == "stdout" else "backslashreplace"
            stream.reconfigure(encoding="utf-8" if is_ascii else None, errors=errors)
            if name == "stdout" and stream.isatty() and not isinstance(stream, _Terminal):
                encoding = stream.encoding
                sys.stdout = _Terminal(stream.detach(), encoding, errors, line_buffering=True)


def as_text(word: str) -> str:
    """Decode a command-line word as UTF-8, whatever the locale."""
    return word.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def printable(text: str) -> str:
    """Text with control characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def print_table(title: str, headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print aligned rows: the first column left, the others right; without headers all left."""
    lines = [[*map(printable, row)] for row in ([headers] if headers else []) + [*rows]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    print(printable(title))
    for first, *others in lines:
        cells = [first.ljust(widths[0])]
        for cell, width in zip(others, widths[1:], strict=True):
            cells.append(cell.rjust(width) if headers else cell)
        print(("  " + "  ".join(cells)).rstrip())


def print_values(title: str, values: Mapping[str, Any]) -> None:
    """Print named values, one per line, with the unit in their name; None is omitted."""
    from groundup.config import flatten

    found = [(name, value) for name, value in flatten(values) if value is not None]
    print_table(title, (), [(_words(name), show_value(name, value)) for name, value in found])


def print_records(title: str, records: Sequence[Mapping[str, Any]]) -> None:
    """Print records with the same keys as a table."""
    rows = [[show_value(name, value) for name, value in one.items()] for one in records]
    print_table(title, list(map(_words, records[0])), rows)


def show_value(name: str, value: Any) -> str:
    from groundup.planner.quantities import show_bytes, show_dollars, show_flops
    from groundup.runtime import format_duration

    if isinstance(value, tuple | list):
        return ", ".join(show_value(name, one) for one in value)
    if value is None or isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    rate = "/s" if name.endswith("_per_second") else ""
    if "bytes" in name and "token" not in name:
        return show_bytes(value) + rate
    if "flops" in name:
        return show_flops(value) + rate
    if name.endswith("dollars"):
        return show_dollars(value)
    if "seconds" in name:
        return format_duration(value / 1000 if "milliseconds" in name else value)
    return f"{value:,.4f}" if isinstance(value, float) and value < 1000 else f"{value:,.0f}"


def _words(name: str) -> str:
    return name.replace("_", " ").replace(".", ": ")


@contextlib.contextmanager
def progress_bar(label: str) -> Iterator["Progress"]:
    """Yield a callback that shows progress on stderr, if that is a terminal."""
    from groundup.runtime import is_first_rank

    if not sys.stderr.isatty() or not is_first_rank():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
