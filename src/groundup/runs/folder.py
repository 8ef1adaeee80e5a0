"""The folder of a run: whose it is, what lies in it, and how a resume finds it.

    runs/<name>/{config.yaml, environment.json, generation.json, metrics.jsonl, outcome.json,
                 log.txt, tokenizer.json}
    runs/<name>/checkpoints/step_000100/

`config.yaml` is written last when a run begins, so a folder that has it has all the rest.
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
    remove_leftovers,
    write_json_atomic,
)
from groundup.runs.config import RunConfig
from groundup.runs.metrics import as_float, parse_line
from groundup.runs.outcome import Outcome

if TYPE_CHECKING:
    from groundup.tokenizer import Tokenizer

_STEP_NAME = re.compile(r"step_(\d{6,})", re.ASCII)
_MAX_LISTED = 500
# Who looks holds the lock for a moment; a trainer waits that long.
_CLAIM_SECONDS = 1.0
# YAML is read slowly, so that a large file of it would hold a reader up.
_MAX_YAML_BYTES = 2**16
_DAMAGE = (ConfigError, OSError, ValueError, TypeError, AttributeError, RecursionError)


@dataclass
class Record:
    """What is to be written about a run when it ends."""

    takes_errors: bool = True
    """Whether an error that ends the block is the run's, or a refusal that leaves it alone."""
    outcome: Callable[[], Outcome] = lambda: Outcome("failed")
    """Asked at the end; the reason of an error is added to it."""


class RunFolder:
    """The paths of one run, and what is done to its small files."""

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

    def is_begun(self) -> bool:
        """Is this a run, or at least the beginning of one?"""
        files = (self.config_file, self.metrics_file, self.environment_file)
        return any(map(os.path.lexists, files))

    def has_run(self) -> bool:
        return self.config_file.is_file()

    def read_config(self, parts: Mapping[str, str] | None = None) -> RunConfig:
        """The settings the run was last trained with.

        parts: what the caller brings; other parts of the model than the run's own are an error.
        """
        if not self.has_run():
            raise ConfigError(f"{self.config_file} does not exist: name the folder of a run")
        config = load_settings(RunConfig, self.config_file)
        check_parts(self.path, config.parts, parts or {}, of="model")
        if config.model.document_separator != "auto":
            return config
        # Of a run of an earlier version, which had the id elsewhere and conversations without it.
        separator = None if config.tuning.chats else self.read_environment().get("end_id", -1)
        return load_settings(RunConfig, self.config_file, {"model.document_separator": separator})

    @contextlib.contextmanager
    def claim(self, *, resume: bool) -> Iterator[None]:
        """Hold the folder, so that no second trainer writes there; make it for a new run, and
        remove it again if the block fails before the run has begun."""
        if resume and not self.has_run():
            raise ConfigError(f"{self.path} does not hold a run to resume: check --name")
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
            has_steps = self.metrics_file.exists() or self.checkpoints.exists()
            # A run that took no step may be begun again, but not over settings put there by hand.
            is_ours = self.environment_file.is_file() and self.log_file.is_file()
            if not resume and (has_steps or (self.has_run() and not is_ours)):
                raise ConfigError(
                    f"{self.path} already holds a run: use --resume, or choose another --name"
                )
            for folder in filter(Path.is_dir, (self.path, self.checkpoints)):
                remove_leftovers(folder)
            try:
                yield
            except BaseException:
                if is_new and not self.has_run():
                    with contextlib.suppress(OSError):
                        disk.remove_tree(self.path)
                raise

    def find(self) -> "RunFolder":
        """The claimed folder where it is now: somebody may rename it during the run."""
        for path in (self.path, *self.path.parent.glob("*/")):
            with contextlib.suppress(OSError):
                if self._inode in (None, path.stat().st_ino):
                    return self if path == self.path else RunFolder(path)
        raise GroundupError(f"{self.path} was moved away or deleted during the run: put it back")

    def begin(
        self,
        config: RunConfig,
        tokenizer: "Tokenizer",
        environment: dict[str, Any],
        generation: Mapping[str, Any] | None = None,
    ) -> None:
        """Write what is known of a new run before its first step.

        generation: the settings to sample with; those of its samples if not given.
        """
        samples = config.samples
        usual = {"temperature": samples.temperature, "top_p": samples.top_p}
        # What is left of one that took no step must not stand beside the files of this one.
        for file in (self.config_file, self.outcome_file):
            disk.remove(file)
        tokenizer.save(self.tokenizer_file)
        write_json_atomic(self.environment_file, environment)
        write_json_atomic(self.generation_file, usual if generation is None else generation)
        save_yaml(self.config_file, config)

    def go_back(self, config: RunConfig, environment: dict[str, Any], step: int) -> None:
        """Put the files of a run back to where its checkpoint of that step is."""
        disk.remove(self.outcome_file)
        write_json_atomic(self.environment_file, environment)
        self.cut_metrics(step)
        save_yaml(self.config_file, config)

    def cut_metrics(self, last_step: int) -> None:
        """Drop the records after a step, which a resumed run writes anew, and damaged lines."""
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
        """config.yaml by flat dotted names, unchecked; nothing while it is missing or damaged."""
        text = self._read_small(self.config_file, _MAX_YAML_BYTES)
        with contextlib.suppress(*_DAMAGE, yaml.YAMLError):
            check_yaml(text)
            return dict(flatten(with_current_names(yaml.load(text, YAML_LOADER))))
        return {}

    def read_environment(self) -> dict[str, Any]:
        """What the run began on; nothing if that cannot be read."""
        with contextlib.suppress(*_DAMAGE):
            return dict(with_current_names(parse_json(self._read_small(self.environment_file))))
        return {}

    @contextlib.contextmanager
    def recording(self, rank: int = 0) -> Iterator[Record]:
        """Add what groundup logs meanwhile to log.txt, and say in outcome.json how it ended.

        Ranks after the first have logs of their own and leave the outcome to it.
        """
        record = Record()
        logger = logging.getLogger("groundup")
        level = logger.level
        file = self.path / f"log_rank_{rank}.txt" if rank else self.log_file
        stream = io.TextIOWrapper(disk.open_stream(file, append=True), "utf-8", "backslashreplace")
        handler = logging.StreamHandler(stream)
        # One that cannot be written (disk full) must not disturb the training.
        handler.handleError = lambda record: None  # type: ignore[method-assign]
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(min(logger.getEffectiveLevel(), logging.INFO))
        try:
            yield record
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            if record.takes_errors or rank:
                # The console hears of it from whoever catches it.
                line = logger.makeRecord(logger.name, logging.ERROR, "", 0, text, (), None)
                handler.handle(line)
            if record.takes_errors and not rank:
                reason = text.partition("\n")[0]
                replace(record.outcome(), reason=reason).write(self.outcome_file)
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
        """Does a process of this machine train in the folder? None where it cannot be locked."""
        with contextlib.suppress(OSError), locked(self.path, shared=True) as is_free:
            return not is_free
        return None

    def judge(self, last_step: int | None, num_steps: int | None) -> tuple[str, str | None]:
        """Whether the run trains, and else how it ended, with the signal or error that ended it:
        running, the state of its outcome, killed where nothing tells how (or it trains on another
        machine), or unknown where the folder cannot be locked."""
        is_held = self.is_claimed()
        if is_held:
            return "running", None
        if (outcome := self.read_outcome()) is not None:
            return outcome.state, outcome.reason
        # The outcome may not have found room on the disk.
        if last_step is not None and num_steps is not None and last_step >= num_steps:
            return "finished", None
        return "unknown" if is_held is None else "killed", None

    def read_outcome(self) -> Outcome | None:
        """How the run ended; None while it trains, and for a run that was killed."""
        with contextlib.suppress(pydantic.ValidationError):
            data = self._read_small(self.outcome_file)
            return pydantic.TypeAdapter(Outcome).validate_json(data)
        return None

    def _read_small(self, path: Path, max_bytes: int = 2**20) -> bytes:
        """The content of a file; nothing where it is missing or larger."""
        data = read_tail(path, max_bytes + 1)
        return data if len(data) <= max_bytes else b""


def check_parts(
    path: Path, recorded: Mapping[str, str], given: Mapping[str, str], of: str = ""
) -> None:
    """Raise ConfigError unless the parts that a run was trained with are those that a program
    brings. Their names may differ, but not their contents. `of`: what their names begin with."""
    for name in filter(lambda name: name.startswith(of), {**recorded, **given}):
        parts = (some.get(name, "").rpartition(" ") for some in (recorded, given))
        (known, _, was), (other, _, now) = parts
        if was != now:
            raise ConfigError(
                f"{path} was trained with {known or 'the default'} as {name}, not "
                f"{other or 'the default'} as it is here: pass it in Python: "
                f"LanguageModel.load(run, model=…), train(config, resume=True, …)"
            )


def from_where_it_started(path: Path, run: Path, config: RunConfig) -> Path:
    """A relative path in the settings of a run as it was meant where the run was started, which the
    run's own path tells; as it is if nothing is there."""
    parts, num_own = run.absolute().parts, len(config.run_folder.parts)
    is_known = parts[-num_own:] == config.run_folder.parts
    found = Path(*parts[:-num_own]) / path if is_known else path
    return found if found.exists() else path


def list_checkpoints(folder: Path) -> list[dict[str, Any]]:
    """Step, size, time and validation loss of every checkpoint in `folder`, newest first, without
    those that vanish meanwhile. `is_best` marks the least validation loss, the later of equals."""
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
