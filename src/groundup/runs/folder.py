"""The folder of a run: its layout, its lock, and its small files.

    runs/<name>/{config.yaml, environment.json, generation.json, metrics.jsonl, outcome.json,
                 log.txt, tokenizer.json}
    runs/<name>/checkpoints/step_000100/

When a run begins, `config.yaml` is written after all other files, so it implies that they exist.
"""

import contextlib
import glob
import io
import json
import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic
import yaml

from groundup import disk
from groundup.config import (
    YAML_LOADER,
    check_yaml,
    flatten,
    load_settings,
    save_yaml,
    with_current_names,
)
from groundup.errors import ConfigError, GroundupError
from groundup.files import (
    atomic_path,
    locked,
    parse_json,
    read_tail,
    take_over,
    write_json_atomic,
)
from groundup.runs.config import RunConfig, translated
from groundup.runs.metrics import Metrics, as_float, parse_line
from groundup.runs.outcome import Outcome
from groundup.runtime import SafeFormatter

if TYPE_CHECKING:
    from groundup.tokenizer import Tokenizer

_STEP_NAME = re.compile(r"step_(\d{6,})", re.ASCII)
_MAX_LISTED = 500
# How long a trainer waits for the lock: readers hold it for a moment.
_CLAIM_SECONDS = 1.0
# YAML is slow to parse, so a large file would block the reader.
_MAX_YAML_BYTES = 2**16
_DAMAGE = (ConfigError, OSError, ValueError, TypeError, AttributeError, RecursionError)
# A resume may change the free settings and never the fixed ones, which the weights depend on. Other
# settings, data or initial weights need --allow-changes.
_FREE = ("logging.", "micro_batch_size")
_FIXED = ("model.", "optimizer.name")
# The folder decides the name.
_NAMES = ("name", "runs_folder")
_INPUTS = ("data", "start_from")
# Changes may alter rounding; a resume only reports them.
_CONDITIONS = ("groundup", "python", "torch", "numpy", "machine", "device", "num_threads")


@dataclass
class Record:
    """What `recording` writes when the run ends."""

    records_errors: bool = True
    """Whether an exception is recorded as the run's failure; False before the run is touched."""
    outcome: Callable[[], Outcome] = lambda: Outcome("failed")
    """Called at the end; after an exception, its text is added as the reason."""


class RunFolder:
    """The paths of a run, and operations on its small files."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.yaml"
        self.environment_file = self.path / "environment.json"
        self.generation_file = self.path / "generation.json"
        self.outcome_file = self.path / "outcome.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.log_file = self.path / "log.txt"
        self.tokenizer_file = self.path / "tokenizer.json"
        self.checkpoints = self.path / "checkpoints"
        self._inode: int | None = None

    def has_begun(self) -> bool:
        """Whether the folder contains a run, possibly an incomplete one."""
        files = (self.config_file, self.metrics_file, self.environment_file)
        return any(map(os.path.lexists, files))

    def has_run(self) -> bool:
        return self.config_file.is_file()

    def read_config(self, parts: Mapping[str, str] | None = None) -> RunConfig:
        """Read the settings that the run was last trained with.

        parts: the caller's custom parts; those of the model must match the run's.
        """
        if not self.has_run():
            raise ConfigError(f"{self.config_file} does not exist: name the folder of a run")
        config = load_settings(RunConfig, self.config_file)
        check_parts(self.path, config.parts, parts or {}, of="model")
        if config.model.document_separator != "auto":
            return config
        # A run of an earlier version: the id is in its environment, and not used for conversations.
        separator = None if config.tuning.chats else self.read_environment().get("end_id", -1)
        return load_settings(RunConfig, self.config_file, {"model.document_separator": separator})

    @contextlib.contextmanager
    def claim(self, *, resume: bool) -> Iterator[None]:
        """Lock the folder against other trainers. Creates it for a new run, and removes it again if
        the block fails before the run has begun."""
        if resume and not self.has_run():
            raise ConfigError(f"{self.path} has no run to resume; check --name")
        is_new = not self.path.exists()
        disk.make_folder(self.path)
        with contextlib.ExitStack() as stack:
            until = time.monotonic() + _CLAIM_SECONDS
            while not stack.enter_context(locked(self.path)):
                stack.close()
                if time.monotonic() > until:
                    raise ConfigError(
                        f"another process is training in {self.path}: choose another --name"
                    )
                time.sleep(0.02)
            self._inode = self.path.stat().st_ino
            has_steps = self._has_steps()
            # A run without a step may be started again, but not if the user wrote its settings.
            is_ours = self.environment_file.is_file() and self.log_file.is_file()
            if not resume and (has_steps or (self.has_run() and not is_ours)):
                raise ConfigError(
                    f"{self.path} already has a run; use --resume, or choose another --name"
                )
            for folder in filter(Path.is_dir, (self.path, self.checkpoints)):
                take_over(folder)
            try:
                yield
            except BaseException as error:
                # A setting that turns out wrong, such as too little time, leaves nothing either.
                is_refused = isinstance(error, ConfigError) and not self._has_steps()
                if is_new and self.is_here() and (is_refused or not self.has_run()):
                    with contextlib.suppress(OSError):
                        disk.remove_tree(self.path)
                raise

    def is_here(self) -> bool:
        """Whether the claimed folder still has its path: there may be another one of that name."""
        with contextlib.suppress(OSError):
            return self._inode in (None, self.path.stat().st_ino)
        return False

    def _has_steps(self) -> bool:
        return self.metrics_file.exists() or self.checkpoints.exists()

    def find(self) -> "RunFolder":
        """Return the claimed folder at its current path, in case it was renamed during the run."""
        if self.is_here():
            return self
        for path in self.path.parent.glob("*/"):
            with contextlib.suppress(OSError):
                if self._inode == path.stat().st_ino:
                    return RunFolder(path)
        raise GroundupError(f"{self.path} was moved or deleted during the run; restore it")

    def begin(
        self,
        config: RunConfig,
        tokenizer: "Tokenizer",
        environment: dict[str, Any],
        generation: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the files of a new run before its first step.

        generation: default settings for generation; by default those of the run's samples.
        """
        samples = config.samples
        usual = {"temperature": samples.temperature, "top_p": samples.top_p}
        # Remove the files of an earlier attempt that took no step.
        for file in (self.config_file, self.outcome_file):
            disk.remove(file)
        tokenizer.save(self.tokenizer_file)
        write_json_atomic(self.environment_file, environment)
        write_json_atomic(self.generation_file, usual if generation is None else generation)
        save_yaml(self.config_file, config)

    def rewind(self, config: RunConfig, environment: dict[str, Any], step: int) -> None:
        """Reset the files of a run to the state at a checkpoint's step."""
        disk.remove(self.outcome_file)
        write_json_atomic(self.environment_file, environment)
        self.cut_metrics(step)
        save_yaml(self.config_file, config)

    def note_resume(
        self,
        environment: dict[str, Any],
        config: RunConfig,
        settings: Mapping[str, Any],
        *,
        allow_changes: bool,
    ) -> tuple[dict[str, Any], list[str]]:
        """The original environment with an entry for this resume, and the changes.

        Raises ConfigError for changes that are not allowed. settings: of the checkpoint, or without
        one of the run.
        """
        old, before = self.read_environment(), dict(flatten(translated(settings)))
        # Ignore settings that an older version did not have.
        changes = {
            key: f"{key}: {before[key]!r} -> {value!r}"
            for key, value in flatten(config.model_dump(mode="json"))
            if before.get(key, value) != value and key not in _NAMES
        }
        # Dropout samples random numbers per micro-batch.
        free = _FREE[: 1 if config.model.dropout else None]
        fixed = [key for key in changes if key.startswith(_FIXED)]
        refused = [change for key, change in changes.items() if not key.startswith(free)]
        found = {
            key: f"{key}: {old[key]} -> {environment[key]}"
            for key in (*_INPUTS, *_CONDITIONS)
            if key in old and key in environment and old[key] != environment[key]
        }
        refused += [found[key] for key in _INPUTS if key in found]
        is_readable = isinstance(old.get("data"), dict)
        if not is_readable:
            refused.append(f"{self.environment_file.name} is damaged or missing")
        if fixed or (refused and not allow_changes):
            advice = "Resume with its own settings and data, or accept this with --allow-changes"
            if fixed:
                advice = f"Its weights do not fit another {fixed[0]}: begin a new run, with --name"
            raise ConfigError(f"the run in {self.path} has changed: {'; '.join(refused)}. {advice}")
        named = [*found.values(), *changes.values()]
        resumes = [*old.get("resumes", []), {"started": environment["started"], "changes": named}]
        return (old if is_readable else environment) | {"resumes": resumes}, named

    def cut_metrics(self, last_step: int) -> None:
        """Drop damaged lines, and the records after a step, which a resumed run writes again."""
        path = self.metrics_file
        if not path.exists():
            return
        with (
            open(path, "rb") as old,
            atomic_path(path) as temporary,
            disk.open_stream(temporary) as new,
        ):
            for line in filter(bytes.strip, old):
                record = parse_line(line)
                step = None if record is None else record.get("step", 0)
                if type(step) is int and 0 <= step <= last_step:
                    new.write(line.rstrip(b"\n") + b"\n")

    def read_settings(self) -> dict[str, Any]:
        """Read config.yaml as flat dotted names, unchecked; empty if it is missing or damaged."""
        text = self._read_small(self.config_file, _MAX_YAML_BYTES)
        with contextlib.suppress(*_DAMAGE, yaml.YAMLError):
            check_yaml(text)
            return dict(flatten(with_current_names(yaml.load(text, YAML_LOADER))))
        return {}

    def read_environment(self) -> dict[str, Any]:
        """Read environment.json; empty if it is missing or damaged."""
        with contextlib.suppress(*_DAMAGE):
            return dict(with_current_names(parse_json(self._read_small(self.environment_file))))
        return {}

    @contextlib.contextmanager
    def recording(self, rank: int = 0) -> Iterator[Record]:
        """Write groundup's log records to log.txt, and how the block ended to outcome.json.

        Other ranks than the first have their own log files, and write no outcome.
        """
        record = Record()
        logger = logging.getLogger("groundup")
        level = logger.level
        file = self.path / f"log_rank_{rank}.txt" if rank else self.log_file
        stream = io.TextIOWrapper(disk.open_stream(file, append=True), "utf-8", "backslashreplace")
        handler = logging.StreamHandler(stream)
        # A record that cannot be written (disk full) must not disturb training.
        handler.handleError = lambda record: None  # type: ignore[method-assign]
        handler.setFormatter(SafeFormatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(min(logger.getEffectiveLevel(), logging.INFO))
        try:
            yield record
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            if record.records_errors or rank:
                # Only to the file: whoever catches the exception prints it.
                line = logger.makeRecord(logger.name, logging.ERROR, "", 0, text, (), None)
                handler.handle(line)
            if record.records_errors and not rank:
                reason = text.partition("\n")[0]
                with contextlib.suppress(GroundupError):
                    replace(record.outcome(), reason=reason).write(self.find().outcome_file)
            raise
        else:
            if not rank:
                record.outcome().write(self.outcome_file)
        finally:
            logger.setLevel(level)
            logger.removeHandler(handler)
            with contextlib.suppress(OSError):
                stream.close()

    def is_claimed(self) -> bool | None:
        """Whether a process on this machine is training in the folder; None if it has no locks."""
        with contextlib.suppress(OSError), locked(self.path, shared=True) as is_free:
            return not is_free
        return None

    def find_state(self, last_step: int | None, num_steps: int | None) -> tuple[str, str | None]:
        """Return the run's state, and the signal or error that ended it. The state is running, that
        of its outcome, killed if there is none (it may be training on another machine), or unknown
        if the folder cannot be locked."""
        is_held = self.is_claimed()
        if is_held:
            return "running", None
        if (outcome := self.read_outcome()) is not None:
            return outcome.state, outcome.reason
        # A full disk may have prevented writing the outcome.
        if last_step is not None and num_steps is not None and last_step >= num_steps:
            return "finished", None
        return "unknown" if is_held is None else "killed", None

    def read_outcome(self) -> Outcome | None:
        """Read outcome.json; None if the run is training, or was killed."""
        with contextlib.suppress(pydantic.ValidationError):
            data = self._read_small(self.outcome_file)
            return pydantic.TypeAdapter(Outcome).validate_json(data)
        return None

    def _read_small(self, path: Path, max_bytes: int = 2**20) -> bytes:
        """Read a file; empty if it is missing or larger."""
        data = read_tail(path, max_bytes + 1)
        return data if len(data) <= max_bytes else b""


def check_parts(
    path: Path, recorded: Mapping[str, str], given: Mapping[str, str], of: str = ""
) -> None:
    """Raise ConfigError unless the custom parts of a run and of the caller have the same contents.
    `of`: only check names that begin with this."""
    for name in filter(lambda name: name.startswith(of), {**recorded, **given}):
        parts = (some.get(name, "").rpartition(" ") for some in (recorded, given))
        (known, _, was), (other, _, now) = parts
        if was != now:
            now = f"not with {other or 'the default'}"
            now = "and its source has changed since" if known == other else now
            raise ConfigError(
                f"{path} was trained with {known or 'the default'} as {name}, {now}; "
                f"pass it in Python: LanguageModel.load(run, model=…), train(config, …)"
            )


def resolve_run_path(path: Path, run: Path, config: RunConfig) -> Path:
    """Resolve a relative path in a run's settings against the directory where the run was started,
    inferred from the run's own path; unchanged if that does not exist."""
    parts, num_own = run.absolute().parts, len(config.run_folder.parts)
    is_known = parts[-num_own:] == config.run_folder.parts
    found = Path(*parts[:-num_own]) / path if is_known else path
    return found if found.exists() else path


def loss_of_weights(folder: RunFolder, metrics: Metrics) -> float | None:
    """The validation loss of the weights that commands load, those of the newest checkpoint; while
    the run trains, the newest one."""
    checkpoints = list_checkpoints(folder.checkpoints) if folder.outcome_file.exists() else []
    loss = checkpoints[0]["validation_loss"] if checkpoints else None
    return metrics.last("validation_loss") if loss is None else loss


def list_checkpoints(folder: Path) -> list[dict[str, Any]]:
    """List step, size, time and validation loss of the checkpoints in a folder, newest first.
    `is_best` marks the lowest validation loss; on ties, the latest."""
    entries: list[dict[str, Any]] = []
    names = glob.glob("step_*", root_dir=folder)
    steps = sorted(int(match[1]) for name in names if (match := _STEP_NAME.fullmatch(name)))
    for step in steps[: -_MAX_LISTED - 1 : -1]:
        path = folder / f"step_{step:06d}"
        entry: dict[str, Any] = {"step": step, "validation_loss": None, "is_best": False}
        with contextlib.suppress(OSError):
            with os.scandir(path) as files:
                sizes = [file.stat(follow_symlinks=False).st_size for file in files]
            entry |= {"num_bytes": sum(sizes), "written": path.stat().st_mtime}
            entries.append(entry)
        with contextlib.suppress(*_DAMAGE):
            state = read_tail(path / "state.json", 2**24)
            metric = as_float(json.loads(state).get("metric"))
            entry["validation_loss"] = metric if math.isfinite(metric) else None
    if measured := [entry for entry in entries if entry["validation_loss"] is not None]:
        min(measured, key=lambda entry: float(entry["validation_loss"]))["is_best"] = True
    return entries
