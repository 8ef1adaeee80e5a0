"""What decides a run besides its settings, and what a resume finds changed: settings, data,
versions, machine, each by name."""

import datetime
import logging
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy
import torch

from groundup import __version__
from groundup.config import flatten
from groundup.data.shards import DataIds
from groundup.errors import ConfigError
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runtime import num_cores
from groundup.text_files import path_text
from groundup.training.machine import device_name, find_peak

# A resume may change these settings freely; with others its weights would be of no use. All the
# rest needs --allow-changes.
_FREE = ("logging.", "micro_batch_size")
_FIXED = ("model.", "optimizer.name")

# A resume with other data, or from other weights, needs --allow-changes; under other versions or on
# other hardware it may round differently.
_INPUTS = ("data", "start_from")
_DECISIVE = ("groundup", "python", "torch", "numpy", "machine", "device", "num_threads")

_log = logging.getLogger(__name__)


def check_changes(old: Mapping[str, Any], config: RunConfig, *, allow_changes: bool) -> list[str]:
    """The differences, as "key: old -> new", between the settings of a checkpoint, or of a run
    without one, and those it is resumed with.

    Raises ConfigError if they must be allowed and are not, or make the old weights useless.
    """
    before = dict(flatten(old))
    # Settings that an older version did not have are as it was without.
    found = {
        key: f"{key}: {before[key]!r} -> {value!r}"
        for key, value in flatten(config.model_dump(mode="json"))
        if before.get(key, value) != value
    }
    # Dropout takes its random numbers by micro-batches.
    free = _FREE[: 1 if config.model.dropout else None]
    advice = "Resume with its own settings, or accept the changes with --allow-changes"
    is_refused = not allow_changes and any(not key.startswith(free) for key in found)
    if fixed := [key for key in found if key.startswith(_FIXED)]:
        advice = f"Its weights do not fit another {fixed[0]}: begin a new run with another --name"
    if fixed or is_refused:
        changes = "; ".join(found.values())
        raise ConfigError(f"the run in {config.run_folder} has other settings: {changes}. {advice}")
    return list(found.values())


def describe_environment(config: RunConfig, data: DataIds, end_id: int | None) -> dict[str, Any]:
    """Everything that decides a run besides its settings, as environment.json holds it."""
    # A run without a mix says nothing of one.
    hidden = ("folder",) if data.mix is not None else ("folder", "mix")
    versions = {"groundup": __version__, "torch": torch.__version__, "numpy": numpy.__version__}
    return {
        **versions,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "device": device_name(config.device),
        "peak_flops_per_second": find_peak(config),
        "num_cores": num_cores(),
        "num_threads": torch.get_num_threads(),
        "git_commit": _git_commit(),
        "command": list(map(path_text, sys.argv)),
        "seed": config.seed,
        "data": {name: value for name, value in asdict(data).items() if name not in hidden},
        "end_id": end_id,
        "started": _now(),
    }


def note_resume(new: dict[str, Any], folder: RunFolder, *, allow_changes: bool) -> dict[str, Any]:
    """The environment the run began in, with a note of this resume.

    Other data must be allowed; other versions or hardware are named.
    """
    old = folder.read_environment()
    is_readable = isinstance(old.get("data"), dict)
    changes = {
        key: f"{key}: {old[key]} -> {new[key]}"
        for key in (*_INPUTS, *_DECISIVE)
        if key in old and key in new and old[key] != new[key]
    }
    inputs = [changes[key] for key in _INPUTS if key in changes]
    if (inputs or not is_readable) and not allow_changes:
        found = "; ".join(inputs) or f"{folder.environment_file.name} is damaged or missing"
        raise ConfigError(
            f"the run in {folder.path} was trained on other data ({found}): give it what it began "
            f"with, or accept the change with --allow-changes"
        )
    if changes:
        _log.warning(
            "results may differ from an uninterrupted run's: %s", "; ".join(changes.values())
        )
    noted = {"started": _now(), "changes": list(changes.values())}
    return (old if is_readable else new) | {"resumes": [*old.get("resumes", []), noted]}


def _now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def _git_commit() -> str | None:
    """The commit of the repository that the process stands in, "-dirty" if files differ from it."""
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
