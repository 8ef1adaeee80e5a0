"""A progress bar for work that takes longer than two seconds, and silence everywhere else.

Library functions report (done, total) as often as they like; throttling happens here.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from groundup.planner.quantities import show_bytes
from groundup.runtime import show_duration

if TYPE_CHECKING:
    from rich.progress import Progress, Task, TaskID

ProgressCallback = Callable[[int, int | None], None]

DELAY_SECONDS = 2.0
_REDRAW_SECONDS = 0.05


@contextlib.contextmanager
def progress_bar(label: str, unit: str = "B", goes_on: bool = False) -> Iterator[ProgressCallback]:
    """Yield a callback that draws `label`, the rate and the time left on stderr.

    `unit` "B" counts bytes; any other is a word for the things counted ("documents"). With
    `goes_on` the first report may be far along, because all but the last of it was done before.
    """
    if not sys.stderr.isatty():
        yield _ignore
        return
    bar = _Bar(label, unit, goes_on)
    try:
        yield bar.update
    finally:
        bar.close()


class _Bar:
    """Holds off until the delay has passed, then draws at most twenty times a second."""

    def __init__(self, label: str, unit: str, goes_on: bool) -> None:
        self._label = label
        self._unit = unit
        self._done_before: int | None = None if goes_on else 0
        self._started = time.monotonic()
        self._drawn = self._started
        self._latest: tuple[int, int | None] = (0, None)
        self._shown: tuple[Progress, TaskID] | None = None

    def update(self, done: int, total: int | None) -> None:
        self._latest = (done, total)
        if self._done_before is None:
            self._done_before = done - 1
        now = time.monotonic()
        waiting = DELAY_SECONDS if self._shown is None else now - self._drawn
        if self._shown is None and now - self._started < waiting:
            return
        if self._shown is not None and waiting < _REDRAW_SECONDS:
            return
        self._drawn = now
        self._draw()

    def close(self) -> None:
        if self._shown is not None:
            self._draw()
            self._shown[0].stop()

    def _draw(self) -> None:
        done, total = self._latest
        if self._shown is None:
            begun = self._done_before or 0
            self._shown = _start(self._label, self._unit, self._started, begun)
        progress, task = self._shown
        progress.update(task, completed=done, total=total, refresh=True)


def _ignore(done: int, total: int | None) -> None:
    pass


def _start(label: str, unit: str, started: float, done_before: int) -> "tuple[Progress, TaskID]":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
    from rich.text import Text

    class Figures(ProgressColumn):
        def render(self, task: "Task") -> Text:
            seconds = time.monotonic() - started
            done, total = int(task.completed), None if task.total is None else int(task.total)
            return Text(describe(done, total, seconds, unit, done_before))

    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        Figures(),
        console=Console(file=sys.stderr),
        auto_refresh=False,
        transient=True,
    )
    task = progress.add_task(label, total=None)
    progress.start()
    return progress, task


def describe(done: int, total: int | None, seconds: float, unit: str, done_before: int = 0) -> str:
    """The figures beside the bar: how much, how fast, how long still."""
    rate = (done - done_before) / seconds if seconds > 0 else 0.0
    of_total = "" if total is None else f" of {_amount(total, unit)}"
    text = f"{_amount(done, unit)}{of_total}, {_amount(rate, unit)}/s"
    if total is not None and rate > 0:
        text += f", {show_duration(max(0.0, (total - done) / rate))} left"
    return text


def _amount(count: float, unit: str) -> str:
    return show_bytes(count) if unit == "B" else f"{count:,.0f} {unit}"
