"""A progress bar for work that takes longer than two seconds, and silence everywhere else."""

import contextlib
import sys
import time
from collections.abc import Iterator

from groundup.runtime import Progress, is_first_rank

DELAY_SECONDS = 2.0


@contextlib.contextmanager
def progress_bar(label: str, unit: str = "B") -> Iterator[Progress]:
    """Yield a callback that shows `label`, the amount, the rate and the time left on stderr.

    Args:
        label: What is being done, in a few words.
        unit: "B" counts bytes; any other is a word for the things counted ("documents").
    """
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
