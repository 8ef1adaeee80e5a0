"""Where trials run, and the environment variables of their processes.

One at a time on a CPU unless told otherwise, one on each CUDA device.
"""

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from groundup.runs.config import RunConfig
from groundup.runtime import num_cores


@dataclass(frozen=True)
class Slot:
    """Room for one trial, and the environment variables that confine it there."""

    name: str
    environment: dict[str, str] = field(default_factory=dict)
    resources: dict[str, float] = field(default_factory=dict)
    """What a trial takes of a cluster."""


def make_slots(config: RunConfig, jobs: int | None = None) -> list[Slot]:
    """As many slots as there are CUDA devices for the run, or one; `jobs` sets the number."""
    devices = _cuda_devices() if config.device in ("auto", "cuda") else []
    if devices:
        names = [devices[number % len(devices)] for number in range(jobs or len(devices))]
        return [Slot(f"cuda {name}", {"CUDA_VISIBLE_DEVICES": name}) for name in names]
    if jobs is None or jobs == 1:
        return [Slot(config.device)]
    # Trials that each took every core would mostly wait for one another.
    threads = {"OMP_NUM_THREADS": str(max(1, num_cores() // jobs))}
    return [Slot(f"{config.device} {number}", threads) for number in range(jobs)]


def make_cluster_slots(
    machines: Sequence[Mapping[str, float]], config: RunConfig, jobs: int | None = None
) -> list[Slot]:
    """As many slots as the machines of a cluster have GPUs for the run, or one for each machine.

    machines: what each has: CPU, GPU.
    config: the run.
    jobs: sets the number.
    """
    num_gpus = sum(int(machine.get("GPU", 0)) for machine in machines)
    if num_gpus and config.device in ("auto", "cuda"):
        resources = {"num_gpus": 1.0, "num_cpus": 1.0}
        return [Slot(f"GPU {number}", {}, resources) for number in range(jobs or num_gpus)]
    cores = [int(machine["CPU"]) for machine in machines if machine.get("CPU", 0) >= 1] or [1]
    count = jobs or len(cores)
    threads = max(1, min(cores) // -(-count // len(cores)))
    environment = {"OMP_NUM_THREADS": str(threads)}
    return [Slot(f"Ray {number}", environment, {"num_cpus": threads}) for number in range(count)]


def num_devices(slots: list[Slot]) -> int:
    """How many devices the slots are on; all that is no CUDA device counts as one."""
    return len({slot.environment.get("CUDA_VISIBLE_DEVICES") for slot in slots})


def shared_bytecode(folder: str) -> dict[str, str]:
    """Environment variables with which trials share compiled Python code in a folder.

    Every trial imports torch, some 2,500 files. Where no bytecode lies beside them, as in many
    containers, each would compile them again: ten seconds before a first step.
    """
    spec = importlib.util.find_spec("torch")
    if spec and spec.origin and os.path.exists(importlib.util.cache_from_source(spec.origin)):
        return {}
    # An empty value counts as none.
    return {"PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": ""}


def _cuda_devices() -> list[str]:
    """The names under which a child process is shown one device each."""
    import torch

    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(number) for number in range(count)]
    return names[:count]
