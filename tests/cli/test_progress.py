"""The progress bar: silent when nobody watches, late to appear, gone when done."""

import io
import sys
import time

import pytest

from groundup.cli import terminal as progress


class Terminal(io.StringIO):
    """A stderr that claims to be a terminal and remembers what was drawn."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock of one element that the test moves by hand."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    return stream


def test_nothing_is_drawn_when_stderr_is_no_terminal(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with progress.progress_bar("encoding") as report:
        for done in range(100):
            clock[0] += 1
            report(done, 100)
    assert capsys.readouterr() == ("", "")


def test_short_work_draws_nothing(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    stream = terminal(monkeypatch)
    with progress.progress_bar("encoding") as report:
        clock[0] = 1.9
        report(10, 100)
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("unit", "total", "shown"),
    [
        ("B", 100_000_000, "20.0/100.0 MB"),
        ("B", None, "20.0/? MB"),
        ("steps", 40_000_000, "20000000/40000000"),
    ],
)
def test_long_work_shows_its_label_and_amount(
    clock: list[float],
    monkeypatch: pytest.MonkeyPatch,
    unit: str,
    total: int | None,
    shown: str,
) -> None:
    stream = terminal(monkeypatch)
    with progress.progress_bar("encoding [x]", unit) as report:
        clock[0] = 4.0
        report(20_000_000, total)
        report(20_000_000, total)
    for text in ("encoding [x]", shown):
        assert text in stream.getvalue()


def test_the_terminal_is_left_clean_after_an_error(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = terminal(monkeypatch)
    with pytest.raises(ValueError, match="broken"), progress.progress_bar("encoding") as report:
        clock[0] = 3.0
        report(1, None)
        raise ValueError("broken")
    show_cursor = "\x1b[?25h"
    assert show_cursor in stream.getvalue()
