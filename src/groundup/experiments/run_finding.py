"""Which runs are meant by the paths a person gives: run folders, sweeps, folders of runs, files."""

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from groundup.config import load_yaml
from groundup.errors import ConfigError, DataError
from groundup.experiments.run_result import RunResult, read_run
from groundup.files import read_json_lines
from groundup.runs.folder import RunFolder


@dataclass
class Found:
    """The runs, in the order given and by name within a folder, and what their sweeps say."""

    runs: list[RunResult] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    """Names of the sweeps among the paths."""
    reasons: list[str] = field(default_factory=list)
    """Why the sweeps were made."""
    sweeps: list[Path] = field(default_factory=list)
    varied: list[str] = field(default_factory=list)
    """The settings that the sweeps vary, by dotted name, in their order."""
    findings: list[str] = field(default_factory=list)
    """What a person wrote about the outcome, into finding.txt beside the runs."""
    notes: list[str] = field(default_factory=list)


def find_runs(paths: Sequence[Path]) -> Found:
    """Read every run below `paths`, each once; a path that leads to none is a ConfigError."""
    found = Found()
    seen: set[str] = set()
    for path in paths:
        _read_finding(path, found)
        for run, trial in _runs_of(path, found):
            real = os.path.realpath(run)
            if real not in seen:
                seen.add(real)
                found.runs.append(read_run(run, trial=trial))
    _tell_apart(found.runs)
    return found


def _runs_of(path: Path, found: Found) -> Iterator[tuple[Path, Mapping[str, Any] | None]]:
    if (path.is_file() and path.suffix == ".jsonl") or RunFolder(path).is_begun():
        yield path, None
    elif _is_sweep(path):
        yield from _runs_of_sweep(path, found)
    elif sweeps := [child for child in _children(path) if _is_sweep(child)]:
        for sweep in sweeps:
            _read_finding(sweep, found)
            yield from _runs_of_sweep(sweep, found)
    else:
        runs = _run_folders_in(path) or _run_folders_in(path / "runs")
        if not runs:
            raise ConfigError(
                f"{path} holds no run: give run folders, a folder of them, the folder of a sweep "
                f"or metrics files (.jsonl)"
            )
        yield from ((run, None) for run in runs)


def _runs_of_sweep(path: Path, found: Found) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    try:
        spec = load_yaml(path / "sweep.yaml")
    except (ConfigError, OSError, ValueError, RecursionError, yaml.YAMLError):
        spec = {}
        found.notes.append(f"sweep.yaml of {path.name} is missing or cannot be read")
    found.names.append(str(spec.get("name") or path.name))
    if spec.get("why"):
        found.reasons.append(str(spec["why"]).strip())
    found.sweeps.append(path)
    varied = map(str, (*_part(spec, "grid"), *_part(spec, "ranges")))
    found.varied += [name for name in varied if name not in found.varied]
    trials = _read_trials(path / "trials.jsonl", found)
    runs = _run_folders_in(path / "runs")
    known = {str(trial.get("point")) for trial in trials.values()}
    for run in runs:
        trial = trials.pop(run.name, {}) or _trial_by_name(run.name, spec)
        known.add(str(trial.get("point")))
        yield run, trial
    num_points = _num_points(spec)
    num_missing = num_points - len(known)
    if num_missing > 0:
        verb = "has" if num_missing == 1 else "have"
        found.notes.append(
            f"{num_missing:,} of {num_points:,} points of {path.name} {verb} not begun: the "
            f"command that made it goes on"
        )
    for name, trial in trials.items():
        status = trial.get("status", "unknown status")
        found.notes.append(f"trial {name} of {path.name} ({status}) left no run folder")


def _part(spec: Mapping[str, Any], name: str) -> dict[Any, Any]:
    part = spec.get(name)
    return part if isinstance(part, dict) else {}


def _num_points(spec: Mapping[str, Any]) -> int:
    """How many a grid has; 0 where points are sampled, or nothing can be told."""
    sizes = [max(1, len(_part(spec, "variants")))]
    for values in _part(spec, "grid").values():
        sizes.append(len({repr(value) for value in values}) if isinstance(values, list) else 0)
    for values in _part(spec, "ranges").values():
        num = values.get("num") if isinstance(values, dict) else 0
        sizes.append(num if isinstance(num, int) else 0)
    return math.prod(sizes) if spec.get("sampler") == "grid" else 0


def _trial_by_name(run: str, spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the name of a trial tells that has not ended, so that no line speaks of it yet."""
    point = run.rpartition("seed=")[0].removesuffix("+")
    names = map(str, _part(spec, "variants"))
    fitting = [name for name in names if f"{point}+".startswith(f"{name}+")]
    return {"point": point or None, "variant": max(fitting, key=len, default=None)}


def _read_finding(folder: Path, found: Found) -> None:
    file = folder / "finding.txt"
    if not file.is_file():
        return
    try:
        text = file.read_text("utf-8").strip()
    except (OSError, ValueError):
        found.notes.append(f"{file.name} of {folder.name} cannot be read as text")
        return
    if text and text not in found.findings:
        found.findings.append(text)


def _read_trials(file: Path, found: Found) -> dict[str, Mapping[str, Any]]:
    """What is known of each trial by name; a later line about it adds to the earlier ones."""
    trials: dict[str, dict[str, Any]] = {}
    if not file.is_file():
        return {}
    try:
        for line in read_json_lines(file):
            if "trial" in line:
                trials.setdefault(str(line["trial"]), {}).update(line)
    except (DataError, OSError) as error:
        found.notes.append(f"{file.name} was read up to its first damaged line: {error}")
    return dict(trials)


def _run_folders_in(folder: Path) -> list[Path]:
    return [child for child in _children(folder) if RunFolder(child).is_begun()]


def _is_sweep(path: Path) -> bool:
    return (path / "sweep.yaml").is_file() or (path / "trials.jsonl").is_file()


def _children(folder: Path) -> list[Path]:
    try:
        children = [child for child in folder.iterdir() if not child.name.startswith(".")]
    except OSError:
        return []
    return sorted(children, key=lambda path: natural_key(path.name))


def natural_key(name: str) -> list[tuple[int, float | str]]:
    """Sorts run-9 before run-10, and rate=0.0003 before rate=0.002."""
    parts = re.split(r"(\d{1,18}(?:\.\d{1,18})?(?:e[+-]?\d{1,2})?)", name, flags=re.ASCII)
    return [
        (0, float(part)) if index % 2 else (1, part) for index, part in enumerate(parts) if part
    ]


def _tell_apart(runs: list[RunResult]) -> None:
    """Give runs of the same name the folder above as part of it, and at last a number."""
    names = [run.name for run in runs]
    for index, run in enumerate(runs):
        if names.count(run.name) > 1:
            above = run.path.resolve().parent
            above = above.parent if above.name == "runs" else above
            runs[index] = replace(run, name=f"{above.name}/{run.name}")
    used: set[str] = set()
    for index, run in enumerate(runs):
        name, number = run.name, 2
        while name in used:
            name, number = f"{run.name} ({number})", number + 1
        used.add(name)
        runs[index] = replace(run, name=name)
