"""Find the runs below the given paths: run folders, sweeps, folders of runs or sweeps."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

from groundup.config import load_yaml
from groundup.errors import ConfigError, GroundupError
from groundup.experiments.run_result import RunResult, read_run
from groundup.experiments.sweep_folder import SweepFolder
from groundup.experiments.trials import TrialRecord
from groundup.runs.folder import RunFolder


@dataclass
class Found:
    """The runs, in the given order and by name within a folder, and facts about their sweeps."""

    runs: list[RunResult] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    """The names of the sweeps."""
    reasons: list[str] = field(default_factory=list)
    """The purposes of the sweeps."""
    notes: list[str] = field(default_factory=list)


def find_runs(paths: Sequence[Path]) -> Found:
    """Read every run below `paths` once; ConfigError for a path without runs."""
    found = Found()
    seen: set[str] = set()
    for path in paths:
        for run, trial in _runs_of(path, found):
            real = os.path.realpath(run)
            if real not in seen:
                seen.add(real)
                found.runs.append(read_run(run, trial))
    _tell_apart(found.runs)
    return found


def _runs_of(path: Path, found: Found) -> Iterator[tuple[Path, TrialRecord | None]]:
    if RunFolder(path).has_begun():
        yield path, None
    elif _is_sweep(path):
        yield from _runs_of_sweep(path, found)
    elif sweeps := [child for child in _children(path) if _is_sweep(child)]:
        for sweep in sweeps:
            yield from _runs_of_sweep(sweep, found)
    else:
        runs = _run_folders_in(path) or _run_folders_in(path / "runs")
        if not runs:
            raise ConfigError(
                f"{path} contains no runs: give run folders, a folder of runs or a sweep's folder"
            )
        yield from ((run, None) for run in runs)


def _runs_of_sweep(path: Path, found: Found) -> Iterator[tuple[Path, TrialRecord | None]]:
    folder, records = SweepFolder(path), dict[str, TrialRecord]()
    try:
        spec = load_yaml(folder.spec_file)
    except (GroundupError, OSError, ValueError, RecursionError, yaml.YAMLError):
        spec = {}
        found.notes.append(f"sweep.yaml of {path.name} is missing or cannot be read")
    try:
        records = folder.records()
    except (GroundupError, OSError) as error:
        found.notes.append(f"trials.jsonl of {path.name} cannot be read: {error}")
    found.names.append(str(spec.get("name") or path.name))
    if spec.get("why"):
        found.reasons.append(str(spec["why"]).strip())
    for run in _run_folders_in(folder.runs):
        yield run, records.pop(run.name, None)
    for name, record in records.items():
        found.notes.append(f"trial {name} of {path.name} ({record.status}) left no run folder")


def _run_folders_in(folder: Path) -> list[Path]:
    return [child for child in _children(folder) if RunFolder(child).has_begun()]


def _is_sweep(path: Path) -> bool:
    return (path / "sweep.yaml").is_file() or (path / "trials.jsonl").is_file()


def _children(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(child for child in folder.iterdir() if not child.name.startswith("."))


def _tell_apart(runs: list[RunResult]) -> None:
    """Runs of one name are named by their paths."""
    names = Counter(run.name for run in runs)
    for index, run in enumerate(runs):
        if names[run.name] > 1:
            runs[index] = replace(run, name=str(run.path))
