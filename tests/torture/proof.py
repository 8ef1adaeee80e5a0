"""The proof that the torture bites: each fault of faults.yaml, in a copy of the package, is found.

A fault is a text of a file and what takes its place. A text that is not there any more, or a fault
that is not found, fails the proof; so does a sound copy in which something is found.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

TORTURE = Path(__file__).resolve().parent
PACKAGE = TORTURE.parents[1] / "src" / "groundup"
_MINUTES = 8.0


@dataclass(frozen=True)
class Fault:
    """What is wrong, the kind of torture that is to find it, and the texts of a file."""

    name: str
    kind: str
    file: str
    old: str
    new: str


def read_faults() -> list[Fault]:
    return [Fault(**values) for values in yaml.safe_load((TORTURE / "faults.yaml").read_text())]


def prove(names: list[str], seed: int) -> int:
    """Apply each fault and look for it; 0 if each is found, and nothing in a sound copy."""
    faults, missed = [one for one in read_faults() if not names or one.name in names], []
    for kind in dict.fromkeys(fault.kind for fault in faults):
        if found := torture(kind, seed, None):
            missed.append(f"{kind} finds something in a sound copy: {found}")
        for fault in (fault for fault in faults if fault.kind == kind):
            begin, found = time.monotonic(), torture(kind, seed, fault)
            missed += [] if found else [fault.name]
            seconds = time.monotonic() - begin
            print(f"{fault.name}: {found or 'NOT FOUND'} ({seconds:.0f} s)", flush=True)
    print(f"{len(faults)} faults, {len(missed)} not found", *missed, sep="\n  ")
    return 1 if missed else 0


def torture(kind: str, seed: int, fault: Fault | None) -> str:
    """What is lost first with a copy of the package that has the fault; empty if nothing is."""
    options = ["--only", kind, "--seed", str(seed), "--until-lost"]
    options += ["--quick"] if fault is None else ["--minutes", str(_MINUTES)]
    with tempfile.TemporaryDirectory(prefix="groundup-proof-") as folder:
        copy = Path(folder, "groundup")
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        if fault is not None:
            text = (copy / fault.file).read_text("utf-8")
            if fault.old not in text:
                raise SystemExit(f"{fault.name}: {fault.file} has no {fault.old!r}: correct it")
            (copy / fault.file).write_text(text.replace(fault.old, fault.new), "utf-8")
        environment = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, str(TORTURE), *options]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    found = [line for line in done.stdout.splitlines() if line.startswith("LOST ")]
    if done.returncode and not found:
        # What keeps it from running at all has been found, too.
        return f"it does not run: {done.stderr.strip().splitlines()[-1:]}"[:150]
    return found[0].removeprefix("LOST ")[:150] if found else ""
