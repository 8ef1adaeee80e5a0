"""Faults by the thousand: `python tests/torture --minutes 10 --seed 1`.

It ends with a table of faults injected, survived and lost, and a command for each loss that shows
it again. `--guide` writes the table into docs/guides/reliability.md; `--proof` applies the faults
of faults.yaml to the package, one at a time, and fails unless each is found.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import logging
import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path

from harness import IS_SANITIZED, Case, Child, Kind, Results, Row, run_case, run_kind

REPOSITORY = Path(__file__).resolve().parents[2]
GUIDE = REPOSITORY / "docs" / "guides" / "reliability.md"
# What the verbs import late; once here is sooner than in every child.
PRELOADED = "cli.train cli.new cli.tokenizer_train data.prepare data.clean experiments.report.page"
PRELOADED += " interop training.loop checkpoint.sharded distributed.sharding serving.app"
BEGIN, END = "<!-- torture:begin -->", "<!-- torture:end -->"
# Of one recorded run; and of how many the same command is run to its end.
_HISTORIES, _CONTINUED = 400, 8


def find_kinds(only: set[str]) -> list[Kind]:
    """The kinds that were asked for; torch is imported only if one of them needs it."""
    kinds = []
    if not only or only - {"native"}:
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

        def lose_power(case: Case) -> None:
            histories.lose_power(case, case.pick(histories.ORDER), range(_HISTORIES), _CONTINUED)

        kinds += [
            Kind("power", lose_power, 0.42, 10),
            Kind("signals", processes.disturb_training, 0.24, 8),
            Kind("verbs", processes.disturb_verb, 0.1, 7),
            Kind("damage", parsers.damage, 0.06, 24),
            Kind("fuzz", parsers.fuzz, 0.1, 240),
            Kind("clients", web.serve, 0.04, 2),
            Kind("forged", web.forge, 0.02, 3),
        ]
    if not only or "native" in only:
        import native

        kinds.append(Kind("native", native.fuzz, 0.04, 120))
    return [kind for kind in kinds if not only or kind.name in only]


def main() -> int:
    """Run, print, and fail if anything was lost."""
    parser = argparse.ArgumentParser(prog="python tests/torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", default=[], help="a kind of faults")
    parser.add_argument("--quick", action="store_true", help="a few cases of each kind")
    parser.add_argument("--until-lost", action="store_true", help="stop at the first loss")
    parser.add_argument("--case", help="one case again, as in power/7")
    parser.add_argument("--work", type=Path, help="a folder to work in, which is kept")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--guide", action="store_true", help="write the table into the guide")
    parser.add_argument("--proof", nargs="*", help="prove that faults are found: all, or by name")
    given = parser.parse_args()
    if given.proof is not None:
        from proof import prove

        return prove(given.proof, given.seed)
    only = {given.case.split("/")[0]} if given.case else set(given.only)
    kinds = find_kinds(only)
    work = given.work or Path(tempfile.mkdtemp(prefix="groundup-torture-", dir=_memory()))
    results = Results()
    begin = time.monotonic()
    try:
        if only != {"native"} and not (work / "made").exists():
            from histories import make_artefacts

            Child(work, lambda: make_artefacts(work / "made")).wait([0])
        seconds = 60 * given.minutes - (time.monotonic() - begin)
        whole = sum(kind.fraction for kind in kinds)
        for kind in kinds:

            def make_case(number: int, kind: Kind = kind) -> Case:
                return Case(kind.name, given.seed, number, work)

            if given.case:
                case = make_case(int(given.case.split("/")[1]))
                results.add(case, run_case(kind, case))
                continue
            num_cases = kind.num_quick if given.quick else sys.maxsize
            time_for_it = 600.0 if given.quick else seconds * kind.fraction / whole
            until_lost = bool(given.until_lost)
            run_kind(kind, make_case, results, given.jobs, num_cases, time_for_it, until_lost)
            if until_lost and results.losses:
                break
    finally:
        if work != given.work:
            shutil.rmtree(work, ignore_errors=True)
    table = render(results, given.seed, time.monotonic() - begin)
    print(table)
    for loss, again in results.losses.items():
        print(f"LOST {loss}\n    {len(again)} times; to see it again: {again[0]}")
    if given.guide:
        before, _, rest = GUIDE.read_text("utf-8").partition(BEGIN)
        GUIDE.write_text(f"{before}{BEGIN}\n{table}{END}{rest.partition(END)[2]}", "utf-8")
    return 1 if results.losses else 0


def _memory() -> str | None:
    """Where nothing waits for a disk: those that lose power are simulated."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def render(results: Results, seed: int, seconds: float) -> str:
    """The table, and under which conditions it came about."""
    lines = ["| fault | injected | lost | |", "| --- | ---: | ---: | --- |"]
    rows = results.rows.values()
    total = Row(sum(row.faults for row in rows), sum(row.lost for row in rows))
    for row in rows:
        total.counts.update(row.counts)
    for name, row in [*sorted(results.rows.items()), ("**all**", total)]:
        notes = ", ".join(f"{count:,} {what}" for what, count in row.counts.items())
        lines.append(f"| {name} | {row.faults:,} | {row.lost} | {notes} |")
    today = datetime.date.today().isoformat()
    sanitized = ", native core under the sanitizers" if IS_SANITIZED else ""
    lines.append(
        f"\n{today}, seed {seed}, {seconds / 60:.1f} minutes on {os.cpu_count()} cores of "
        f"{platform.machine()}, Python {platform.python_version()}{sanitized}."
    )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
