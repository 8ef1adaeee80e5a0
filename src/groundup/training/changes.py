"""What a resume finds changed since the run began, by name: settings, data, versions, machine."""

import datetime
import logging
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy
import torch

from groundup import __version__
from groundup.checkpoint import Checkpoint
from groundup.config import Settings, flatten
from groundup.data.prepare.sources import path_text
from groundup.data.shards import DataIds
from groundup.errors import ConfigError
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runtime import num_cores
from groundup.training.execution import describe_kernels, device_name

# What is only shown, and changes neither weights nor files that count; and what other ranks or
# another memory may ask for, and changes the last bits alone: all of them where there is dropout.
_FREE = ("logging.", "micro_batch_size")

# A state of other settings than these cannot be loaded at all.
_FIXED = ("model.", "optimizer.name")
_FIXED_EXCEPT = (
    "model.norm_eps",
    "model.rope_theta",
    "model.dropout",
)

# A resume under other values of these may round differently.
_DECISIVE = ("groundup", "python", "torch", "numpy", "machine", "device", "num_threads", "data")

_log = logging.getLogger(__name__)


def differences(old: Settings, new: Settings) -> list[str]:
    """Every setting that is not the same, as "key: old -> new"."""
    return [f"{key}: {before!r} -> {after!r}" for key, before, after in _changed(old, new)]


def check_changes(old: RunConfig, new: RunConfig, *, allow_changes: bool) -> list[str]:
    """The differences between a run's settings and those it is resumed with.

    Raises ConfigError if there are any and `allow_changes` is not set, or if one makes the old
    weights useless. What is only shown may change at any time, and so may micro-batches.
    """
    keys = [key for key, _, _ in _changed(old, new)]
    free = _FREE[:1] if old.model.dropout else _FREE
    found = differences(old, new)
    advice = None
    fixed = [key for key in keys if key.startswith(_FIXED) and not key.startswith(_FIXED_EXCEPT)]
    if fixed:
        advice = f"Its weights do not fit another {fixed[0]}: begin a new run with another --name"
    elif not allow_changes and any(not key.startswith(free) for key in keys):
        advice = (
            "Resume with the settings it began with, or accept the changes with --allow-changes"
        )
    if advice is not None:
        raise ConfigError(
            f"the run in {new.run_folder} has other settings: {'; '.join(found)}. {advice}"
        )
    return found


def check_saved(
    folder: RunFolder,
    config: RunConfig,
    checkpoint: Checkpoint,
    environment: dict[str, Any],
    *,
    allow_changes: bool,
) -> None:
    """Raise ConfigError if a checkpoint was saved with other settings than its run has by now.

    A resume that takes its settings from the run folder finds nothing else to compare them with,
    and a digit may have flipped there. What is accepted is noted with the resume in `environment`,
    and stays so for those to come.
    """
    saved = checkpoint.state.get("settings")
    before = dict(flatten(saved)) if isinstance(saved, dict) else {}
    changed = {
        key: value
        for key, value in flatten(config.model_dump(mode="json"))
        if before.get(key, value) != value and not key.startswith(_FREE)
    }
    accepted = changed.items() if allow_changes else _accepted_since(checkpoint, environment)
    for key, value in changed.items():
        if (key, value) not in accepted:
            raise ConfigError(
                f"{folder.config_file} has {key}: {value!r}, but {checkpoint.path} was saved with "
                f"{before[key]!r}: put it back, or accept the change with --allow-changes"
            )
    if checkpoint.step > config.num_steps:
        raise ConfigError(
            f"the run in {folder.path} is at step {checkpoint.step:,} already, behind its end at "
            f"num_steps {config.num_steps:,}: give more steps with --num-steps"
        )
    if allow_changes:
        environment["resumes"][-1] |= {"step": checkpoint.step, "accepted": changed}


def _accepted_since(checkpoint: Checkpoint, environment: dict[str, Any]) -> list[tuple[str, Any]]:
    """The settings that earlier resumes from this checkpoint accepted."""
    noted = [one for one in environment["resumes"] if isinstance(one, dict)]
    found = [one.get("accepted") for one in noted if one.get("step") == checkpoint.step]
    return [item for accepted in found if isinstance(accepted, dict) for item in accepted.items()]


def describe_environment(
    config: RunConfig, data: DataIds, end_id: int | None, peak_flops_per_second: float | None
) -> dict[str, Any]:
    """Everything that decides a run besides its settings, as environment.json holds it."""
    return {
        "groundup": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "device": device_name(config),
        "kernels": describe_kernels(config),
        "peak_flops_per_second": peak_flops_per_second,
        "num_cores": num_cores(),
        "num_threads": torch.get_num_threads(),
        "git_commit": _git_commit(),
        "command": list(map(path_text, sys.argv)),
        "seed": config.seed,
        "data": _data_of(data),
        "end_id": end_id,
        "started": _now(),
    }


def _data_of(data: DataIds) -> dict[str, Any]:
    # A run without a mix says nothing of one, as before there were any.
    hidden = ("folder",) if data.mix is not None else ("folder", "mix")
    return {name: value for name, value in asdict(data).items() if name not in hidden}


def note_resume(new: dict[str, Any], folder: RunFolder, *, allow_changes: bool) -> dict[str, Any]:
    """The environment the run began in, with a note of this resume.

    Other data must be allowed; other versions or hardware are named.
    """
    old = folder.read_environment()
    changes = [
        f"{key}: {old[key]} -> {new[key]}"
        for key in _DECISIVE
        if key in old and old[key] != new[key]
    ]
    data_changes = [change for change in changes if change.startswith("data")]
    if data_changes and not allow_changes:
        raise ConfigError(
            f"the run in {folder.path} was trained on other data ({data_changes[0]}): give it the "
            f"shards it began with, or accept the change with --allow-changes"
        )
    if data_changes:
        _log.warning(
            "the run began with other data, so its losses before and after cannot be compared: %s",
            data_changes[0],
        )
    if others := [change for change in changes if change not in data_changes]:
        _log.warning(
            "the run began under other conditions, so its last bits may differ from those of a "
            "run that was not interrupted: %s",
            "; ".join(others),
        )
    earlier = old.get("resumes")
    resume = {"started": _now(), "changes": changes}
    return {**old, "resumes": [*(earlier if isinstance(earlier, list) else []), resume]}


def _changed(old: Settings, new: Settings) -> Iterator[tuple[str, Any, Any]]:
    before = dict(flatten(old.model_dump(mode="json")))
    after = dict(flatten(new.model_dump(mode="json")))
    for key in dict.fromkeys([*before, *after]):
        if before.get(key) != after.get(key):
            yield key, before.get(key), after.get(key)


def _now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def _git_commit() -> str | None:
    """The commit of the repository that the process stands in, "-dirty" if files differ from it."""
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(
            command, cwd=Path.cwd(), capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
