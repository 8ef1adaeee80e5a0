"""What decides a run besides its settings, and what a resume finds changed: settings, data,
versions, machine, each by name."""

import datetime
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
# rest, and other data or other first weights, needs --allow-changes.
_FREE = ("logging.", "micro_batch_size")
_FIXED = ("model.", "optimizer.name")
_INPUTS = ("data", "start_from")
# With others a resume may round differently.
_CONDITIONS = ("groundup", "python", "torch", "numpy", "machine", "device", "num_threads")


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


def note_resume(
    environment: dict[str, Any],
    folder: RunFolder,
    config: RunConfig,
    settings: Mapping[str, Any],
    *,
    allow_changes: bool,
) -> tuple[dict[str, Any], list[str]]:
    """The environment the run began in, with a note of this resume, and what has changed.

    Raises ConfigError for changes that must be allowed and are not, or that make the old weights
    useless. `settings` are those of the checkpoint, or of the run without one.
    """
    old, before = folder.read_environment(), dict(flatten(settings))
    # Settings that an older version did not have are as it was without.
    changes = {
        key: f"{key}: {before[key]!r} -> {value!r}"
        for key, value in flatten(config.model_dump(mode="json"))
        if before.get(key, value) != value
    }
    # Dropout takes its random numbers by micro-batches.
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
        refused.append(f"{folder.environment_file.name} is damaged or missing")
    if fixed or (refused and not allow_changes):
        advice = "Resume with its own settings and data, or accept this with --allow-changes"
        if fixed:
            advice = f"Its weights do not fit another {fixed[0]}: begin a new run, with --name"
        raise ConfigError(f"the run in {folder.path} has changed: {'; '.join(refused)}. {advice}")
    named = [*found.values(), *changes.values()]
    resumes = [*old.get("resumes", []), {"started": _now(), "changes": named}]
    return (old if is_readable else environment) | {"resumes": resumes}, named


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
