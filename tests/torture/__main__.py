"""An hour of faults in minutes: `python tests/torture --minutes 10 --seed 1`.

It ends with a table of faults injected, survived and lost, and a command for each loss that shows
it again. `--guide` writes the table into docs/guides/reliability.md.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import importlib
import logging
import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path

from harness import IS_SANITIZED, Case, Kind, Results, run_case, run_kind

REPOSITORY = Path(__file__).resolve().parents[2]
GUIDE = REPOSITORY / "docs" / "guides" / "reliability.md"
# What the verbs import late; once here is sooner than in every child.
PRELOADED = (
    "gguf",
    "groundup.cli.parsing",
    "groundup.data.prepare",
    "groundup.data.samples",
    "groundup.experiments.report",
    "groundup.interop",
    "groundup.serving.launch",
    "groundup.training",
    "groundup.training.verify",
    "torch._inductor",
)
BEGIN, END = "<!-- torture:begin -->", "<!-- torture:end -->"


def find_kinds(only: set[str]) -> list[Kind]:
    """The kinds that were asked for; torch is imported only if one of them needs it."""
    kinds = []
    if not only or only - {"native"}:
        # What the package warns of is what this is about.
        logging.lastResort = logging.NullHandler()
        # Threads are not forked along, so none may have been started before.
        os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
        for module in PRELOADED:
            importlib.import_module(module)
        import clients
        import damage
        import disks
        import fuzz
        import kills

        kinds += [
            Kind("kill", kills.kill, 0.32, 9),
            Kind("full", disks.fill, 0.16, 6),
            Kind("read-only", disks.freeze, 0.08, 3),
            Kind("damage", damage.damage, 0.14, 36),
            Kind("fuzz", fuzz.fuzz, 0.14, 440, patience_seconds=60),
            Kind("clients", clients.attack, 0.10, 1, in_parallel=False),
        ]
    if not only or "native" in only:
        import native

        kinds.append(Kind("native", native.fuzz, 0.06, 200, patience_seconds=60))
    return [kind for kind in kinds if not only or kind.name in only]


def main() -> int:
    """Run, print, and fail if anything was lost."""
    parser = argparse.ArgumentParser(prog="python tests/torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", default=[], help="a kind of faults")
    parser.add_argument("--quick", action="store_true", help="a few cases of each kind")
    parser.add_argument("--case", help="one case again, as in kill/7")
    parser.add_argument("--work", type=Path, help="a folder to work in, which is kept")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--guide", action="store_true", help="write the table into the guide")
    given = parser.parse_args()
    only = {given.case.split("/")[0]} if given.case else set(given.only)
    kinds = find_kinds(only)
    work = given.work or Path(tempfile.mkdtemp(prefix="groundup-torture-"))
    try:
        results = Results()
        begin = time.monotonic()
        if only != {"native"}:
            from artefacts import Artefacts

            Artefacts(work).make()

        def make_case(kind: Kind, number: int) -> Case:
            return Case(kind.name, given.seed, number, work, given.quick)

        if given.case:
            case = make_case(kinds[0], int(given.case.split("/")[1]))
            results.add(case, run_case(kinds[0], case))
        else:
            seconds = 60 * given.minutes - (time.monotonic() - begin)
            whole = sum(kind.fraction for kind in kinds)
            for kind in kinds:
                lanes = given.jobs if kind.in_parallel else 1
                run_kind(
                    kind,
                    functools.partial(make_case, kind),
                    results,
                    lanes,
                    kind.num_quick if given.quick else None,
                    600.0 if given.quick else seconds * kind.fraction / whole,
                )
        table = render(results, given.seed, time.monotonic() - begin)
        print(table)
        for loss, again in results.losses.items():
            print(f"LOST {loss}\n    {len(again)} times; to see it again: {again[0]}")
        if given.guide:
            before, _, rest = GUIDE.read_text("utf-8").partition(BEGIN)
            GUIDE.write_text(f"{before}{BEGIN}\n{table}{END}{rest.partition(END)[2]}", "utf-8")
        return 1 if results.losses else 0
    finally:
        if work != given.work:
            shutil.rmtree(work, ignore_errors=True)


def render(results: Results, seed: int, seconds: float) -> str:
    """The table, and under which conditions it came about."""
    lines = [
        "| fault | injected | survived | lost | at most |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    total = [0, 0]
    for name, row in results.rows.items():
        notes = ", ".join(f"{value:,.2f} {unit}" for unit, value in row.notes.items())
        lines.append(
            f"| {name} | {row.faults:,} | {row.faults - row.lost:,} | {row.lost} | {notes} |"
        )
        total[0] += row.faults
        total[1] += row.lost
    lines.append(f"| **all** | {total[0]:,} | {total[0] - total[1]:,} | {total[1]} | |")
    for name, reason in results.impossible.items():
        lines.append(f"\n{name}: not tried, {reason}")
    today = datetime.date.today().isoformat()
    sanitized = ", native core under the sanitizers" if IS_SANITIZED else ""
    lines.append(
        f"\n{today}, seed {seed}, {seconds / 60:.1f} minutes on {os.cpu_count()} cores of "
        f"{platform.machine()}, Python {platform.python_version()}{sanitized}."
    )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
