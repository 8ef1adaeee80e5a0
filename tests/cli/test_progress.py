"""The progress bar: silent when nobody watches, late to appear, gone when done."""

import io

import pytest

from groundup.cli import progress


class Terminal(io.StringIO):
    """A stderr that claims to be a terminal and remembers what was drawn."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock of one element that the test moves by hand."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    stream = Terminal()
    monkeypatch.setattr(progress.sys, "stderr", stream)
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


def test_long_work_shows_label_amount_rate_and_time_left(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = terminal(monkeypatch)
    with progress.progress_bar("encoding [x]") as report:
        clock[0] = 4.0
        report(20_000_000, 100_000_000)
        drawn = stream.getvalue()
    assert "encoding [x]" in drawn
    assert "20.0 MB of 100.0 MB, 5.0 MB/s, 16.0 s left" in drawn


def test_work_that_goes_on_is_timed_from_where_it_began(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = terminal(monkeypatch)
    with progress.progress_bar("training", unit="steps", goes_on=True) as report:
        clock[0] = 1.0
        report(901, 1000)
        clock[0] = 10.0
        report(950, 1000)
        drawn = stream.getvalue()
    assert "950 steps of 1,000 steps, 5 steps/s, 10.0 s left" in drawn


def test_calls_in_quick_succession_are_drawn_once(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = terminal(monkeypatch)
    with progress.progress_bar("encoding") as report:
        clock[0] = 3.0
        report(1, 100)
        drawn = stream.getvalue()
        for done in range(1000):
            clock[0] += 0.00001
            report(done, 100)
        assert stream.getvalue() == drawn
        clock[0] += 1
        report(50, 100)
        assert stream.getvalue() != drawn


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


@pytest.mark.parametrize(
    ("done", "total", "seconds", "unit", "text"),
    [
        (0, None, 0.0, "B", "0 B, 0 B/s"),
        (999, None, 1.0, "B", "999 B, 999 B/s"),
        (1_500, 3_000, 1.0, "B", "1.5 kB of 3.0 kB, 1.5 kB/s, 1.0 s left"),
        (10**12, 8 * 10**12, 1000.0, "B", "1.0 TB of 8.0 TB, 1.0 GB/s, 116.7 minutes left"),
        (1200, 2400, 60.0, "files", "1,200 files of 2,400 files, 20 files/s, 60.0 s left"),
        (200, 100, 1.0, "B", "200 B of 100 B, 200 B/s, 0 ms left"),
    ],
)
def test_figures_read_as_a_person_would_say_them(
    done: int, total: int | None, seconds: float, unit: str, text: str
) -> None:
    assert progress.describe(done, total, seconds, unit) == text
