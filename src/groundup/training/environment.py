"""What decides a run besides its settings, and what a resume finds changed: settings, data,
versions, machine, each by name."""

import datetime
import logging
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy
import torch

from groundup import __version__
from groundup.config import Settings, flatten
from groundup.data.shards import DataIds
from groundup.errors import ConfigError
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runtime import num_cores
from groundup.text_files import path_text
from groundup.training.execution import describe_kernels
from groundup.training.machine import device_name

# Whether a resume may change a setting: freely, if it is allowed, or never, as the weights would
# not fit. The first row that the name begins with counts.
_RULES: tuple[tuple[str, Literal["free", "allow", "never"]], ...] = (
    ("logging.", "free"),
    ("micro_batch_size", "free"),
    ("model.norm_eps", "allow"),
    ("model.rope_theta", "allow"),
    ("model.dropout", "allow"),
    ("model.", "never"),
    ("optimizer.name", "never"),
    ("", "allow"),
)

# A resume under other values of these may round differently.
_DECISIVE = ("groundup", "python", "torch", "numpy", "machine", "device", "num_threads", "data")

_log = logging.getLogger(__name__)


def differences(old: Settings, new: Settings) -> list[str]:
    """Every setting that is not the same, as "key: old -> new"."""
    return [_show(*change) for change in _changes(old.model_dump(mode="json"), new)]


def check_changes(old: Mapping[str, Any], config: RunConfig, *, allow_changes: bool) -> list[str]:
    """The differences between the settings of a checkpoint, or of a run without one, and those it
    is resumed with.

    Raises ConfigError if there are any and `allow_changes` is not set, or if one makes the old
    weights useless. Logging may change at any time, and so may micro-batches without dropout.
    """
    changes = list(_changes(old, config))
    rules = {key: _rule(key, config) for key, _, _ in changes}
    found = [_show(*change) for change in changes]
    fixed = [key for key, rule in rules.items() if rule == "never"]
    advice = None
    if fixed:
        advice = f"Its weights do not fit another {fixed[0]}: begin a new run with another --name"
    elif "allow" in rules.values() and not allow_changes:
        advice = "Resume with its own settings, or accept the changes with --allow-changes"
    if advice is not None:
        raise ConfigError(
            f"the run in {config.run_folder} has other settings: {'; '.join(found)}. {advice}"
        )
    return found


def describe_environment(
    config: RunConfig, data: DataIds, end_id: int | None, peak_flops_per_second: float | None
) -> dict[str, Any]:
    """Everything that decides a run besides its settings, as environment.json holds it."""
    # A run without a mix says nothing of one.
    hidden = ("folder",) if data.mix is not None else ("folder", "mix")
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
        "data": {name: value for name, value in asdict(data).items() if name not in hidden},
        "end_id": end_id,
        "started": _now(),
    }


def note_resume(new: dict[str, Any], folder: RunFolder, *, allow_changes: bool) -> dict[str, Any]:
    """The environment the run began in, with a note of this resume.

    Other data must be allowed; other versions or hardware are named.
    """
    old = folder.read_environment()
    if not isinstance(old.get("data"), dict) and not allow_changes:
        raise ConfigError(
            f"{folder.environment_file} is damaged or missing, so that nothing tells which data "
            f"the run was trained on: put it back, or go on without with --allow-changes"
        )
    changes = {
        key: f"{key}: {old[key]} -> {new[key]}"
        for key in _DECISIVE
        if key in old and old[key] != new[key]
    }
    noted = {"started": _now(), "changes": list(changes.values())}
    data_change = changes.pop("data", None)
    if data_change is not None and not allow_changes:
        raise ConfigError(
            f"the run in {folder.path} was trained on other data ({data_change}): give it the "
            f"shards it began with, or accept the change with --allow-changes"
        )
    if data_change is not None:
        _log.warning("losses before and after do not compare, the data differ: %s", data_change)
    if changes:
        _log.warning(
            "the last bits may differ from those of a run that was not interrupted: %s",
            "; ".join(changes.values()),
        )
    earlier = old.get("resumes")
    resumes = [*(earlier if isinstance(earlier, list) else []), noted]
    return {**(old or new), "resumes": resumes}


def _rule(key: str, config: RunConfig) -> str:
    if key == "micro_batch_size" and config.model.dropout:
        return "allow"
    return next(rule for prefix, rule in _RULES if key.startswith(prefix))


def _changes(old: Mapping[str, Any], new: Settings) -> Iterator[tuple[str, Any, Any]]:
    """Settings that differ; those that an older version did not have are as it was without."""
    before = dict(flatten(old))
    for key, value in flatten(new.model_dump(mode="json")):
        if before.get(key, value) != value:
            yield key, before[key], value


def _show(key: str, before: Any, after: Any) -> str:
    return f"{key}: {before!r} -> {after!r}"


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
