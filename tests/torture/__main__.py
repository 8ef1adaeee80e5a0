"""Faults by the thousand: `python tests/torture --minutes 10 --seed 1`.

It ends with a table of faults injected and lost, and a command for each loss that shows it again.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import itertools
import logging
import os
import platform
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from harness import Case, Child, Kind, Results, run_cases
from proof import prove

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "reliability.md"
# What the verbs import late; once here is sooner than in every child.
PRELOADED = "cli.train cli.new cli.tokenizer data.prepare data.clean experiments.report.page"
PRELOADED += " interop training.loop checkpoint.sharded distributed.sharding serving.app"
BEGIN, END = "<!-- torture:begin -->", "<!-- torture:end -->"


def find_kinds() -> list[Kind]:
    # What the package warns of is what this is about.
    logging.lastResort = logging.NullHandler()
    # Threads are not forked along, so none may have been started before.
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    for module in (*(f"groundup.{name}" for name in PRELOADED.split()), "torch._dynamo"):
        importlib.import_module(module)
    import histories
    import parsers
    import processes
    import web

    return [
        Kind("power", histories.lose_power, 0.54, 15),
        Kind("signals", processes.disturb, 0.26, 8),
        Kind("damage", parsers.damage, 0.04, 22),
        Kind("fuzz", parsers.fuzz, 0.1, 10),
        Kind("clients", web.serve, 0.06, 2),
    ]


def main() -> int:
    """Run, print, and fail if anything was lost."""
    parser = argparse.ArgumentParser(prog="python tests/torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", default=[], help="a kind of faults")
    parser.add_argument("--aim", default="", help="cases with this in their name alone")
    parser.add_argument("--quick", action="store_true", help="a few cases of each kind")
    parser.add_argument("--until", default="", help="stop at a loss like this expression")
    parser.add_argument("--case", help="one case again, as in power/7")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--guide", action="store_true", help="write the table into the guide")
    parser.add_argument("--proof", nargs="*", help="put faults into the package: all, or by name")
    given = parser.parse_args()
    if given.proof is not None:
        return prove(given.proof, given.seed, given.jobs)
    only = {given.case.split("/")[0]} if given.case else set(given.only)
    kinds = [kind for kind in find_kinds() if not only or kind.name in only]
    # Disks that lose power are simulated: where files lie in memory nothing waits for a real one.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    work = Path(tempfile.mkdtemp(prefix="groundup-torture-", dir=memory))
    results, begin = Results(), time.monotonic()
    try:
        from histories import make_artefacts

        Child(work, lambda: make_artefacts(work / "made")).wait([0])
        for kind in kinds:
            numbers: Iterable[int] = itertools.count()
            if given.quick or given.case:
                is_one = given.case is not None
                numbers = [int(given.case.split("/")[1])] if is_one else range(kind.num_quick)
            cases = (Case(kind.name, given.seed, number, work, given.aim) for number in numbers)
            seconds = 60 * given.minutes * kind.fraction / sum(one.fraction for one in kinds)
            seconds = 1200.0 if given.quick else seconds
            run_cases(kind, cases, results, given.jobs, seconds, given.until)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    table = render(results, given.seed, time.monotonic() - begin)
    print(table)
    for loss, again in results.losses.items():
        print(f"LOST {loss}\n    {len(again)} times; to see it again: {again[0]}")
    if given.guide:
        before, _, rest = GUIDE.read_text("utf-8").partition(BEGIN)
        GUIDE.write_text(f"{before}{BEGIN}\n{table}{END}{rest.partition(END)[2]}", "utf-8")
    return 1 if results.losses else 0


def render(results: Results, seed: int, seconds: float) -> str:
    """The table, and under which conditions it came about."""
    lines = ["| fault | injected | lost | |", "| --- | ---: | ---: | --- |"]
    total = sum(results.rows.values(), Counter[str]())
    for name, row in [*sorted(results.rows.items()), ("**all**", total)]:
        notes = [f"{row[what]:,} {what}" for what in ("states", "continued") if row[what]]
        lines.append(f"| {name} | {row['injected']:,} | {row['lost']} | {', '.join(notes)} |")
    lines.append(
        f"\n{datetime.date.today().isoformat()}, seed {seed}, {seconds / 60:.1f} minutes on "
        f"{os.cpu_count()} cores of {platform.machine()}, Python {platform.python_version()}."
    )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
