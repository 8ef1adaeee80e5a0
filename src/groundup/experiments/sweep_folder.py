"""The folder of a sweep: its settings, its trials' results, and their runs.

sweeps/<name>/{sweep.yaml, trials.jsonl, proposals.jsonl}
sweeps/<name>/trials/<trial>.{yaml, txt}     settings and output of the trial
sweeps/<name>/runs/<trial>/                  an ordinary run folder
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from groundup.config import flatten, load_settings
from groundup.disk import make_folder
from groundup.errors import ConfigError, DataError
from groundup.experiments.spec import SweepConfig, base_config
from groundup.experiments.trials import Point, Status, Trial, TrialRecord
from groundup.files import append_json_line, locked, read_json_lines, take_over
from groundup.runs.folder import RunFolder

TrialState = Status | Literal["begun", "to run"]


class SweepFolder:
    """The paths of a sweep, and its small files."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.spec_file = self.path / "sweep.yaml"
        self.records_file = self.path / "trials.jsonl"
        self.proposals_file = self.path / "proposals.jsonl"
        self.trials = self.path / "trials"
        self.runs = self.path / "runs"

    @contextlib.contextmanager
    def claim(self) -> Iterator[None]:
        """Create and lock the folder, so that no other process runs the same trials."""
        for folder in (self.trials, self.runs):
            make_folder(folder)
        with locked(self.path) as is_ours:
            if not is_ours:
                raise ConfigError(f"another process is running the sweep in {self.path}")
            for folder in (self.path, self.trials, *self.runs.glob("*/")):
                take_over(folder)
            yield

    def check(self, spec: SweepConfig, trials: Sequence[Trial]) -> None:
        """Raise ConfigError unless the sweep can continue here: it may grow, but existing trials
        must keep their meaning."""
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"{self.path} is a file: choose another name for the sweep")
        ended = [record for record in self.records().values() if record.status != "failed"]
        has_begun = any(RunFolder(path).has_run() for path in self.runs.glob("*"))
        if self.spec_file.exists() and (ended or has_begun):
            changes = list(_changed(load_settings(SweepConfig, self.spec_file), spec))
            if changes:
                raise ConfigError(
                    f"the trials in {self.path} have another base: {'; '.join(changes)}. Give the "
                    f"sweep another name, or delete {self.runs}"
                )
        settings = {record.point: record.settings for record in ended}
        for trial in trials:
            before = settings.get(trial.point, trial.settings)
            if before != trial.settings:
                raise ConfigError(
                    f"{trial.point} in {self.path} had other settings: {before!r} -> "
                    f"{dict(trial.settings)!r}. Give the sweep another name"
                )

    def records(self) -> dict[str, TrialRecord]:
        """The latest record of each trial."""
        if not self.records_file.is_file():
            return {}
        lines = map(TrialRecord.from_json, read_json_lines(self.records_file))
        return {record.trial: record for record in lines}

    def states(self, trials: Sequence[Trial]) -> dict[str, TrialState]:
        """The state of each trial by name; failed ones run again."""
        records = self.records()
        states: dict[str, TrialState] = {}
        for trial in trials:
            record = records.get(trial.name)
            if record is not None and record.status != "failed":
                states[trial.name] = record.status
            else:
                has_begun = RunFolder(self.runs / trial.name).has_run()
                states[trial.name] = "begun" if has_begun else "to run"
        return states

    def add_record(self, record: TrialRecord) -> None:
        append_json_line(self.records_file, asdict(record), sync=True)

    def proposals(self) -> list[Point]:
        """The points proposed so far, in order."""
        if not self.proposals_file.is_file():
            return []
        lines = list(read_json_lines(self.proposals_file))
        if not all(isinstance(line.get("settings"), dict) for line in lines):
            raise DataError(f"{self.proposals_file} has a line without settings: remove that line")
        return [Point(line["settings"], line.get("variant")) for line in lines]

    def add_proposal(self, point: Point) -> None:
        append_json_line(self.proposals_file, asdict(point), sync=True)


def _changed(old: SweepConfig, new: SweepConfig) -> Iterator[str]:
    """Yield the changes that alter the meaning of an existing trial's name."""
    before, after = (dict(flatten(base_config(one).model_dump(mode="json"))) for one in (old, new))
    for one, config in ((before, old), (after, new)):
        one["tokens"] = config.tokens
    for name in before.keys() | after.keys():
        if before.get(name) != after.get(name):
            yield f"{name}: {before.get(name)!r} -> {after.get(name)!r}"
