"""Progress bars and tables: silent when nobody watches, late to appear, gone when done."""

import io
import sys
import time

import pytest

from groundup.cli.terminal import print_table, progress_bar


class Terminal(io.StringIO):
    """A stream that claims to be a terminal and remembers what was drawn."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock of one element that the test moves by hand."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    return now


@pytest.mark.parametrize(
    ("unit", "total", "seconds", "shown"),
    [
        ("B", 100_000_000, 4.0, "20.0/100.0 MB"),
        ("B", None, 4.0, "20.0/? MB"),
        ("steps", 40_000_000, 4.0, "20000000/40000000"),
        ("B", 100_000_000, 1.9, None),
    ],
)
def test_work_is_shown_once_it_takes_long(
    clock: list[float],
    monkeypatch: pytest.MonkeyPatch,
    unit: str,
    total: int | None,
    seconds: float,
    shown: str | None,
) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with pytest.raises(ValueError, match="broken"), progress_bar("encoding [x]", unit) as report:
        clock[0] = seconds
        report(20_000_000, total)
        report(20_000_000, total)
        raise ValueError("broken")
    drawn, show_cursor = stream.getvalue(), "\x1b[?25h"
    if shown is None:
        assert drawn == ""
    else:
        assert "encoding [x]" in drawn and shown in drawn and show_cursor in drawn


def test_nothing_is_drawn_off_a_terminal(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with progress_bar("encoding") as report:
        clock[0] = 9
        report(50, 100)
    assert capsys.readouterr() == ("", "")


def test_tables_are_aligned(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [["first", "1"], ["b", "12,345"]]
    print_table("sizes", ["name", "count"], rows)
    assert capsys.readouterr().out == "sizes\n  name    count\n  first       1\n  b      12,345\n"
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    print_table("[sizes]", ["name", "count"], rows)
    assert "12,345" in stream.getvalue()
