"""The folder of a run: whose it is, what lies in it, and how a resume finds it.

    runs/<name>/{config.yaml, environment.json, metrics.jsonl, log.txt, tokenizer.json}
    runs/<name>/checkpoints/step_000100/

`config.yaml` is written last when a run begins, so a folder that has it has all the rest.
"""

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groundup.config import load_settings, save_yaml
from groundup.errors import ConfigError
from groundup.files import (
    atomic_path,
    locked,
    parse_json,
    remove_stale_temporaries,
    write_json_atomic,
)
from groundup.runs.config import RunConfig
from groundup.runs.log import RunLog, log_to_file
from groundup.runs.metrics import parse_line

if TYPE_CHECKING:
    from groundup.tokenizer import Tokenizer

_LIST_OF_LOCKS = Path("/proc/locks")

# What stands for the step of a line of metrics.jsonl that is no record; torn is the last alone.
_DAMAGED, _TORN = -1, -2

_log = logging.getLogger(__name__)


class RunFolder:
    """The paths of one run, and what is done to its small files."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.yaml"
        self.environment_file = self.path / "environment.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.log_file = self.path / "log.txt"
        self.tokenizer_file = self.path / "tokenizer.json"
        self.checkpoints = self.path / "checkpoints"

    @property
    def traces(self) -> tuple[Path, ...]:
        """Any of these makes a folder a run, or at least the beginning of one."""
        return self.config_file, self.metrics_file, self.environment_file

    def has_run(self) -> bool:
        return self.config_file.is_file()

    def read_config(self) -> RunConfig:
        """The settings the run was last trained with."""
        if not self.has_run():
            what = f"has no {self.config_file.name}" if self.path.is_dir() else "is no folder"
            raise ConfigError(
                f"{self.path} {what}, so there is no run to read: name a folder that groundup "
                f"train made, or train one"
            )
        return load_settings(RunConfig, self.config_file)

    @contextlib.contextmanager
    def claim(self, *, resume: bool) -> Iterator[None]:
        """Hold the folder, so that no second trainer writes there; make it for a new run.

        If the block fails before the run has begun, what was made for it is removed again.
        """
        if resume and not self.has_run():
            raise ConfigError(
                f"{self.path} holds no run to resume: check --name and --runs-folder, or leave "
                f"--resume out to begin it"
            )
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"{self.path} is a file: choose another --name for the run")
        folders = [path for path in (self.path, *self.path.parents) if not path.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path) as is_ours:
            if not is_ours:
                raise ConfigError(
                    f"another process is training in {self.path}: wait until it is done, or choose "
                    f"another --name"
                )
            if not resume:
                self._refuse_existing()
            remove_stale_temporaries(self.path)
            early = (self.log_file, self.tokenizer_file, self.environment_file)
            files = [file for file in early if not file.exists()]
            try:
                yield
            except BaseException:
                if not self.has_run():
                    _take_back(files, folders)
                raise

    def begin(self, config: RunConfig, tokenizer: "Tokenizer", environment: dict[str, Any]) -> None:
        """Write what is known of a new run before its first step."""
        # What is left of one that took no step must not stand beside the files of this one.
        self.config_file.unlink(missing_ok=True)
        tokenizer.save(self.tokenizer_file)
        write_json_atomic(self.environment_file, environment)
        save_yaml(self.config_file, config)

    def read_environment(self) -> dict[str, Any]:
        """What the run began on; nothing if that cannot be read."""
        try:
            value = parse_json(self.environment_file.read_bytes())
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    def cut_metrics(self, last_step: int) -> bool:
        """Drop the records after `last_step`: a resumed run writes them anew. Gives whether what is
        left lacks a record of `last_step` although lines were lost.

        Metrics are for looking and checkpoints for going on, so damage stops nothing: the file is
        kept under another name, and its sound records go on.
        """
        if not self.metrics_file.exists():
            return False
        steps = [step for _, step in self._metrics_lines()]
        num_damaged = steps.count(_DAMAGED)
        if num_damaged or steps.count(_TORN) or any(step > last_step for step in steps):
            with atomic_path(self.metrics_file) as temporary:
                with open(temporary, "wb") as file:
                    for line, step in self._metrics_lines():
                        if 0 <= step <= last_step:
                            file.write(line.rstrip(b"\n") + b"\n")
                if num_damaged:
                    self._set_metrics_aside(num_damaged)
        return (num_damaged > 0 or _TORN in steps) and last_step not in steps

    def _metrics_lines(self) -> Iterator[tuple[bytes, int]]:
        """Each line with its step; a line that is no record has a mark instead."""
        with open(self.metrics_file, "rb") as file:
            for line in file:
                record = parse_line(line)
                step = _DAMAGED if record is None else record.get("step", 0)
                if record is None and not line.endswith(b"\n"):
                    step = _TORN
                elif type(step) is not int or step < 0:
                    step = _DAMAGED
                if line.strip():
                    yield line, step

    def _set_metrics_aside(self, num_damaged: int) -> None:
        number = 1
        while (aside := self.path / f"metrics.damaged-{number}.jsonl").exists():
            number += 1
        os.rename(self.metrics_file, aside)
        _log.warning(
            "%s has damaged lines (%d): it is set aside as %s, and the run goes on with the "
            "records that are sound",
            self.metrics_file,
            num_damaged,
            aside.name,
        )

    def log_to_file(self) -> contextlib.AbstractContextManager[RunLog]:
        """Add what groundup logs meanwhile to log.txt."""
        return log_to_file(self.log_file)

    def _refuse_existing(self) -> None:
        remains = [path for path in (self.metrics_file, self.checkpoints) if path.exists()]
        if self.has_run() and (remains or not self._is_written_by_training()):
            raise ConfigError(
                f"{self.path} already holds a run: go on with it by --resume, or choose another "
                f"--name"
            )
        if remains:
            raise ConfigError(
                f"{self.path} has {remains[0].name} but no {self.config_file.name}: put that back "
                f"and use --resume, or choose another --name"
            )

    def _is_written_by_training(self) -> bool:
        """Or has somebody put settings there? A run that took no step may be begun again."""
        return self.environment_file.is_file() and self.log_file.is_file()


def is_claimed(folder: Path) -> bool | None:
    """Does a process of this machine train in the folder? None where the system does not tell.

    The kernel's list of locks is read and no lock is tried, for a look must never turn away a
    trainer that begins at that moment.
    """
    try:
        file = f" {_device_of(folder)}:{os.stat(folder).st_ino} "
        lines = _LIST_OF_LOCKS.read_text("ascii", "replace").splitlines()
    except (OSError, LookupError):
        return None
    return any(" FLOCK " in line and file in line for line in lines)


def _device_of(folder: Path) -> str:
    """The device of a folder's file system as the list of locks has it, such as fe:00.

    On btrfs that is not the device that `stat` gives, which differs from subvolume to subvolume.
    """
    file = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        facts = dict(line.split(":", 1) for line in _read_lines(f"/proc/self/fdinfo/{file}"))
    finally:
        os.close(file)
    mounts = {words[0]: words[2] for words in map(str.split, _read_lines("/proc/self/mountinfo"))}
    major, minor = map(int, mounts[facts["mnt_id"].strip()].split(":"))
    return f"{major:02x}:{minor:02x}"


def _read_lines(path: str) -> list[str]:
    return Path(path).read_text("utf-8", "replace").splitlines()


def _take_back(files: Iterable[Path], folders: Iterable[Path]) -> None:
    """Remove files, and those folders that nobody else has put anything into."""
    with contextlib.suppress(OSError):
        for file in files:
            file.unlink(missing_ok=True)
        for folder in folders:
            folder.rmdir()
