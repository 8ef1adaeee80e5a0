"""The folder of a run: whose it is, what lies in it, and how a resume finds it.

    runs/<name>/{config.yaml, environment.json, metrics.jsonl, outcome.json, log.txt,
                 tokenizer.json}
    runs/<name>/checkpoints/step_000100/

`config.yaml` is written last when a run begins, so a folder that has it has all the rest.
"""

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from groundup.config import flatten, load_settings, save_yaml
from groundup.errors import ConfigError
from groundup.files import locked, parse_json, remove_stale_temporaries, write_json_atomic
from groundup.runs.config import RunConfig
from groundup.runs.metrics import is_number
from groundup.runs.outcome import Outcome, log_to_file, parse_outcome
from groundup.runs.plain_files import open_plain_file, read_tail

if TYPE_CHECKING:
    from groundup.tokenizer import Tokenizer

_STEP_NAME = re.compile(r"step_(\d{6,})", re.ASCII)
_MAX_LISTED = 500
# With the random state and the settings in it.
_MAX_STATE_BYTES = 2**24
# Who looks holds the lock for a moment; a trainer waits that long.
_CLAIM_SECONDS = 1.0
_MAX_JSON_BYTES = 2**20
# YAML is read slowly, so that a large file of it would hold a reader up.
_MAX_YAML_BYTES = 2**16


@dataclass
class Record:
    """What is to be written about a run when it ends."""

    takes_errors: bool = True
    """Whether an error that ends the block is the run's, or a refusal that leaves it alone."""
    outcome: Callable[[], Outcome] = lambda: Outcome("failed")
    """Asked at the end; the reason of an error is added to it."""


class RunFolder:
    """The paths of one run, and what is done to its small files."""

    def __init__(self, path: str | os.PathLike[str], *, follow_links: bool = True) -> None:
        """follow_links: whether a link in the folder, which need not exist, may lead elsewhere: not
        where folders of others are shown to strangers."""
        self.path = Path(path)
        self.follow_links = follow_links
        self.config_file = self.path / "config.yaml"
        self.environment_file = self.path / "environment.json"
        self.outcome_file = self.path / "outcome.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.log_file = self.path / "log.txt"
        self.tokenizer_file = self.path / "tokenizer.json"
        self.checkpoints = self.path / "checkpoints"

    def is_begun(self) -> bool:
        """Is this a run, or at least the beginning of one?"""
        files = (self.config_file, self.metrics_file, self.environment_file)
        return any(map(os.path.lexists, files))

    def has_run(self) -> bool:
        return self.config_file.is_file()

    def read_config(self) -> RunConfig:
        """The settings the run was last trained with."""
        if not self.has_run():
            what = f"has no {self.config_file.name}" if self.path.is_dir() else "does not exist"
            raise ConfigError(
                f"{self.path} {what}, so no run can be read: name a folder that groundup "
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
                f"{self.path} does not hold a run to resume: check --name and --runs-folder, or "
                f"leave --resume out to begin it"
            )
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"{self.path} is a file: choose another --name for the run")
        folders = [path for path in (self.path, *self.path.parents) if not path.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            until = time.monotonic() + _CLAIM_SECONDS
            while not (is_ours := stack.enter_context(locked(self.path))):
                stack.close()
                if time.monotonic() > until:
                    break
                time.sleep(0.02)
            if not is_ours:
                raise ConfigError(
                    f"another process is training in {self.path}: wait until it is done, or choose "
                    f"another --name"
                )
            if not resume:
                self._refuse_existing()
            remove_stale_temporaries(self.path)
            early = (self.log_file, self.tokenizer_file, self.environment_file, self.outcome_file)
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
        for file in (self.config_file, self.outcome_file):
            file.unlink(missing_ok=True)
        tokenizer.save(self.tokenizer_file)
        write_json_atomic(self.environment_file, environment)
        save_yaml(self.config_file, config)

    def read_settings(self) -> dict[str, Any]:
        """config.yaml by flat dotted names, unchecked; nothing while it is missing or damaged."""
        text = self._read_small(self.config_file)
        try:
            # By aliases a small file could stand for any number of values.
            events = yaml.parse(text) if len(text) <= _MAX_YAML_BYTES else [yaml.AliasEvent("")]
            if any(isinstance(event, yaml.AliasEvent) for event in events):
                return {}
            values = yaml.safe_load(text)
            return dict(flatten(values)) if isinstance(values, dict) else {}
        except (ConfigError, OSError, ValueError, RecursionError, yaml.YAMLError):
            return {}

    def read_environment(self) -> dict[str, Any]:
        """What the run began on; nothing if that cannot be read."""
        try:
            value = parse_json(self._read_small(self.environment_file))
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    @contextlib.contextmanager
    def recording(self, rank: int = 0) -> Iterator[Record]:
        """Add what groundup logs meanwhile to log.txt, and say in outcome.json how it ended.

        Ranks after the first have logs of their own and leave the outcome to it.
        """
        record = Record()
        log_file = self.path / f"log_rank_{rank}.txt" if rank else self.log_file
        with log_to_file(log_file) as add_error:
            try:
                yield record
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                if record.takes_errors or rank:
                    # The console hears of it from whoever catches it.
                    add_error(text)
                if record.takes_errors and not rank:
                    reason = text.partition("\n")[0]
                    replace(record.outcome(), reason=reason).write(self.outcome_file)
                raise
            if not rank:
                record.outcome().write(self.outcome_file)

    def is_claimed(self) -> bool | None:
        """Does a process of this machine train in the folder? None where it cannot be locked."""
        try:
            file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return None
        finally:
            os.close(file)
        return False

    def read_outcome(self) -> Outcome | None:
        """How the run ended; None while it trains, and for a run that was killed."""
        return parse_outcome(self._read_small(self.outcome_file))

    def _read_small(self, path: Path) -> bytes:
        """The content of a small file; nothing where it is missing or large."""
        with open_plain_file(path, follow_links=self.follow_links) as file:
            if file is None or os.fstat(file).st_size > _MAX_JSON_BYTES:
                return b""
            return os.pread(file, _MAX_JSON_BYTES, 0)

    def _refuse_existing(self) -> None:
        remains = [path for path in (self.metrics_file, self.checkpoints) if path.exists()]
        if self.has_run() and (remains or not self._is_written_by_training()):
            raise ConfigError(
                f"{self.path} already holds a run: continue it with --resume, or choose another "
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


def list_checkpoints(folder: Path) -> list[dict[str, Any]]:
    """Step, size, time and validation loss of every checkpoint in `folder`, newest first.

    `is_best` marks the one with the least validation loss, the later of equals. Folders that vanish
    meanwhile, as old checkpoints do, are left out.
    """
    entries = []
    with contextlib.suppress(OSError):
        found = [match for name in os.listdir(folder) if (match := _STEP_NAME.fullmatch(name))]
        steps = sorted(found, key=lambda match: int(match[1]), reverse=True)[:_MAX_LISTED]
        entries = [one for match in steps if (one := _describe(folder / match[0], int(match[1])))]
    measured = [entry for entry in entries if entry["validation_loss"] is not None]
    if measured:
        min(measured, key=lambda entry: float(entry["validation_loss"]))["is_best"] = True
    return entries


def _describe(path: Path, step: int) -> dict[str, Any] | None:
    metric: float | None = None
    try:
        with os.scandir(path) as files:
            num_bytes = sum(file.stat(follow_symlinks=False).st_size for file in files)
        written = os.stat(path).st_mtime
    except OSError:
        return None
    with contextlib.suppress(ValueError, OverflowError, RecursionError, AttributeError):
        state = read_tail(path / "state.json", _MAX_STATE_BYTES, follow_links=False)
        found = json.loads(state).get("metric")
        metric = float(found) if is_number(found) else None
    return {
        "step": step,
        "num_bytes": num_bytes,
        "written": written,
        "validation_loss": metric,
        "is_best": False,
    }


def _take_back(files: Iterable[Path], folders: Iterable[Path]) -> None:
    """Remove files, and those folders that nobody else has put anything into."""
    with contextlib.suppress(OSError):
        for file in files:
            file.unlink(missing_ok=True)
        for folder in folders:
            folder.rmdir()
