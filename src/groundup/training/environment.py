"""What a run ran on: versions, machine, seeds and data, so that it can be explained later."""

import datetime
import platform
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy
import torch

from groundup import __version__
from groundup.data.shards import DataIds
from groundup.runs.config import RunConfig
from groundup.runtime import num_cores

# A resume under other values of these may round differently.
DECISIVE = ("groundup", "python", "torch", "numpy", "machine", "device", "num_threads", "data")


def describe_environment(
    config: RunConfig,
    device_name: str,
    kernels: str,
    data: DataIds,
    end_id: int,
    peak_flops_per_second: float | None,
) -> dict[str, Any]:
    """Everything that decides a run besides its settings, as environment.json holds it."""
    return {
        "groundup": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "device": device_name,
        "kernels": kernels,
        "peak_flops_per_second": peak_flops_per_second,
        "num_cores": num_cores(),
        "num_threads": torch.get_num_threads(),
        "git_commit": _git_commit(),
        "command": sys.argv,
        "seed": config.seed,
        "data": {name: value for name, value in asdict(data).items() if name != "folder"},
        "end_id": end_id,
        "started": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def environment_changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What differs among the things that may change the last bits, as "key: old -> new"."""
    return [
        f"{key}: {old[key]} -> {new[key]}"
        for key in DECISIVE
        if key in old and old[key] != new[key]
    ]


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
