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
_MINUTES = 4.0


@dataclass(frozen=True)
class Fault:
    """What is wrong, the kind of torture that is to find it, and the texts of a file."""

    name: str
    kind: str
    file: str
    old: str
    new: str

    def apply(self, package: Path) -> None:
        path = package / self.file
        text = path.read_text("utf-8")
        if self.old not in text:
            raise SystemExit(f"{self.name}: {self.file} no longer has {self.old!r}; correct it")
        path.write_text(text.replace(self.old, self.new), "utf-8")


def read_faults() -> list[Fault]:
    return [Fault(**values) for values in yaml.safe_load((TORTURE / "faults.yaml").read_text())]


def prove(names: list[str], seed: int) -> int:
    """Apply each fault and look for it; 0 if each is found, and nothing in a sound copy."""
    faults = [fault for fault in read_faults() if not names or fault.name in names]
    missed = []
    with tempfile.TemporaryDirectory(prefix="groundup-proof-") as folder:
        for kind in dict.fromkeys(fault.kind for fault in faults):
            if found := torture(Path(folder), kind, seed, None):
                missed.append(f"{kind} finds something in a sound copy: {found}")
            for fault in (fault for fault in faults if fault.kind == kind):
                begin = time.monotonic()
                found = torture(Path(folder), kind, seed, fault)
                missed += [] if found else [fault.name]
                seconds = time.monotonic() - begin
                print(f"{fault.name}: {found or 'NOT FOUND'} ({seconds:.0f} s)", flush=True)
    print(f"{len(faults)} faults, {len(missed)} not found" + "".join(f"\n  {n}" for n in missed))
    return 1 if missed else 0


def torture(folder: Path, kind: str, seed: int, fault: Fault | None) -> str:
    """What is lost first with a copy of the package that has the fault; empty if nothing is."""
    shutil.rmtree(folder / "groundup", ignore_errors=True)
    shutil.copytree(PACKAGE, folder / "groundup", ignore=shutil.ignore_patterns("__pycache__"))
    if fault is not None:
        fault.apply(folder / "groundup")
    options = ["--only", kind, "--seed", str(seed), "--until-lost"]
    options += ["--quick"] if fault is None else ["--minutes", str(_MINUTES)]
    done = subprocess.run(
        [sys.executable, str(TORTURE), *options],
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("LOST ")]
    if done.returncode not in (0, 1) or bool(done.returncode) != bool(found):
        # Also what keeps it from running at all has been found.
        last = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        return f"it does not run: {last[0][:150]}"
    return found[0].removeprefix("LOST ")[:150] if found else ""
