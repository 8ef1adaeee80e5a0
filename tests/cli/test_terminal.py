"""Progress bars and tables: silent when nobody watches, late to appear, gone when done."""

import io
import sys

import pytest

from groundup.cli.terminal import progress_bar


class Terminal(io.StringIO):
    """A stream that claims to be a terminal and remembers what was drawn."""

    def isatty(self) -> bool:
        return True


def test_work_is_shown_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress_bar("encoding") as report:
        report(50, 100)
    assert capsys.readouterr() == ("", "")
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with pytest.raises(ValueError, match="broken"), progress_bar("encoding") as report:
        report(20, 100)
        raise ValueError("broken")
    show_cursor = "\x1b[?25h"
    assert "encoding" in stream.getvalue() and show_cursor in stream.getvalue()
