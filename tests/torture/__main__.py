"""Fault injection: `python tests/torture --minutes 10 --seed 1`.

Prints a table of faults injected and lost, and for each loss a command that reproduces it.
"""

import argparse
import datetime
import importlib
import logging
import os
import platform
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from harness import Case, Child, Inject, Results, run_cases
from proof import prove

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "reliability.md"
# Late imports of the verbs: importing them once is faster than in every child.
PRELOADED = "cli.train cli.new cli.tokenizer data.prepare data.clean experiments.report.page"
PRELOADED += " interop training.loop checkpoint.sharded distributed.sharding serving.app"


def find_kinds() -> dict[str, tuple[Inject, float, int]]:
    """Return the kinds of faults: function, fraction of the time, cases of a quick run."""
    # The package's warnings are expected here.
    logging.lastResort = logging.NullHandler()
    # Threads do not survive a fork, so none may have been started before.
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    for module in (*(f"groundup.{name}" for name in PRELOADED.split()), "torch._dynamo"):
        importlib.import_module(module)
    import histories
    import parsers
    import processes
    import web

    return {
        "power": (histories.lose_power, 0.54, 15),
        "signals": (processes.disturb, 0.26, 8),
        "damage": (parsers.damage, 0.04, 22),
        "fuzz": (parsers.fuzz, 0.1, 10),
        "clients": (web.serve, 0.06, 2),
    }


def main() -> int:
    """Run, print the results, and return 1 if anything was lost."""
    parser = argparse.ArgumentParser(prog="python tests/torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", default=[], help="a kind of faults")
    parser.add_argument("--aim", default="", help="only cases whose name contains this")
    parser.add_argument("--quick", action="store_true", help="a few cases of each kind")
    parser.add_argument("--until", default="", help="stop when a loss matches this pattern")
    parser.add_argument("--case", default="", help="repeat a single case, such as power/7")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--guide", action="store_true", help="write the table into the guide")
    parser.add_argument("--proof", nargs="*", help="seed faults into the package: all, or by name")
    given = parser.parse_args()
    if given.proof is not None:
        return prove(given.proof, given.seed, given.jobs)
    name, _, number = given.case.partition("/")
    only = [name] if name else given.only
    kinds = {name: kind for name, kind in find_kinds().items() if not only or name in only}
    # Power failures are simulated, so that files may be in memory, which is faster.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    results, begin = Results(given.until), time.monotonic()
    with tempfile.TemporaryDirectory("", "torture-", memory, ignore_cleanup_errors=True) as folder:
        from histories import make_artefacts

        work = Path(folder)
        Child(work, lambda: make_artefacts(work / "made")).wait([0])
        for name, (inject, fraction, num_quick) in kinds.items():
            numbers = [int(number)] if number else range(num_quick if given.quick else 10**9)
            cases = (Case(name, given.seed, one, work, given.aim) for one in numbers)
            part = fraction / sum(kind[1] for kind in kinds.values())
            minutes = 20.0 if given.quick else given.minutes * part
            run_cases(inject, cases, results, given.jobs, 60 * minutes)
    table = render(results, given.seed, time.monotonic() - begin)
    print(table)
    for loss, again in results.losses.items():
        print(f"LOST {loss}\n    {len(again)} times; to reproduce: {again[0]}")
    if given.guide:
        marked = re.compile("(?<=<!-- torture:begin -->\n).*(?=<!-- torture:end -->)", re.DOTALL)
        GUIDE.write_text(marked.sub(table, GUIDE.read_text("utf-8")), "utf-8")
    return 1 if results.losses else 0


def render(results: Results, seed: int, seconds: float) -> str:
    """Format the table, and the conditions of the run."""
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
