"""How the quickstart's page looks: headings with their commands, and indented lines below."""

import contextlib
import io
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.text import Text


class Page:
    """Prints to standard output; off a terminal in plain lines that are never wrapped."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._console = Console(highlight=False, width=None if self._is_terminal else 1_000_000)

    def head(self, title: str, *commands: str) -> None:
        """Begin a part of the page: its title, and what a person would type for it."""
        self._console.print()
        self._console.print(Text(title, style="bold"))
        for command in commands:
            self._console.print(Text(f"   $ {command}", style="green"), soft_wrap=True)

    def say(self, text: str | Text, style: str = "") -> None:
        """Print a line, indented."""
        shown = text if isinstance(text, Text) else Text(text, style=style)
        if self._is_terminal:
            self._console.print(Padding(shown, (0, 0, 0, 3)))
        else:
            self._console.print(Text("   ").append_text(shown), soft_wrap=True)

    @contextlib.contextmanager
    def take_log(self) -> Iterator[None]:
        """Meanwhile, what is logged stands on the page instead of on standard error."""
        with contextlib.redirect_stderr(_Lines(self)):
            yield


class _Lines(io.TextIOBase):
    """A text file whose lines are said on the page."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._begun = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._page.say(line)
        return len(text)


def quote(path: Path) -> str:
    """A path as a shell takes it."""
    return shlex.quote(str(path))
