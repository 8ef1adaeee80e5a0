"""Validates the torture: each fault of faults.yaml, seeded in a copy of the package, is found.

A fault is a text in a file and its replacement, the kind of torture that should find it, a regular
expression for the message of the loss, and a filter for the names of cases. The proof fails if the
text is no longer in the file, or if a fault is not found in time.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

TORTURE = Path(__file__).resolve().parent
PACKAGE = TORTURE.parents[1] / "src" / "groundup"
FAULTS: list[dict[str, str]] = yaml.safe_load((TORTURE / "faults.yaml").read_text("utf-8"))
_MINUTES = 8.0


def prove(names: list[str], seed: int, num_jobs: int) -> int:
    """Seed each fault and search for it; returns 0 if all are found."""
    faults, missed = [one for one in FAULTS if not names or one["name"] in names], []
    for fault in faults:
        begin = time.monotonic()
        options = ["--only", fault["kind"], "--aim", fault["aim"], "--until", fault["says"]]
        found = torture([*options, "--minutes", str(_MINUTES)], seed, num_jobs, fault)
        # A fault that prevents it from running at all counts as found.
        is_found = re.search(fault["says"], found) or found.startswith("it does not run")
        missed += [] if is_found else [fault["name"]]
        how = f"{'' if is_found else 'NOT FOUND '}{found} ({time.monotonic() - begin:.0f} s)"
        print(f"{fault['name']}: {how}", flush=True)
    print(f"{len(faults)} faults, {len(missed)} not found", *missed, sep="\n  ")
    return 1 if missed else 0


def torture(options: list[str], seed: int, num_jobs: int, fault: dict[str, str] | None) -> str:
    """Run with a copy of the package that has the fault; returns the last loss, empty if none."""
    with tempfile.TemporaryDirectory(prefix="groundup-proof-") as folder:
        copy = Path(folder, "groundup")
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        if fault is not None:
            text = (copy / fault["file"]).read_text("utf-8")
            assert fault["old"] in text, f"{fault['name']}: {fault['file']} is not as it was"
            (copy / fault["file"]).write_text(text.replace(fault["old"], fault["new"]), "utf-8")
        environment = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, str(TORTURE), "--seed", str(seed), "--jobs", str(num_jobs)]
        done = subprocess.run([*command, *options], env=environment, capture_output=True, text=True)
    found = [line for line in done.stdout.splitlines() if line.startswith("LOST ")]
    if done.returncode and not found:
        return f"it does not run: {done.stderr.strip().splitlines()[-1:]}"[:150]
    return found[-1].removeprefix("LOST ")[:300] if found else ""
