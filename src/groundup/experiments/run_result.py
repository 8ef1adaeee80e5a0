"""A run as read from its folder: settings, metrics, environment, state, cost.

Missing or damaged files become notes, so that everything readable is shown.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from groundup.experiments.trials import TrialRecord
from groundup.planner import count_parameters, training_flops_per_token
from groundup.runs.config import model_of
from groundup.runs.folder import RunFolder
from groundup.runs.metrics import Metrics
from groundup.runs.metrics_file import read_metrics


class RunState(NamedTuple):
    """The state of a run, and the reason if one is known."""

    state: Literal["finished", "running", "unfinished", "diverged", "failed", "empty"]
    reason: str | None = None


@dataclass(frozen=True)
class RunResult:
    """The contents of a run folder."""

    name: str
    path: Path
    settings: Mapping[str, Any]
    """config.yaml by dotted names."""
    environment: Mapping[str, Any]
    metrics: Metrics
    outcome: RunState
    cost: Mapping[str, float | None]
    """So far; speed and MFU are medians; None if unknown."""
    notes: tuple[str, ...]
    """Problems with the folder, a sentence each."""
    point: str | None = None
    """Its point in a sweep; the same for all seeds."""

    @property
    def seed(self) -> int | None:
        seed = self.settings.get("seed", self.environment.get("seed"))
        return seed if isinstance(seed, int) else None

    @property
    def data_id(self) -> str | None:
        """Content id of its shards."""
        data = self.environment.get("data")
        value = data.get("content") if isinstance(data, dict) else None
        return value if isinstance(value, str) and value else None


def read_run(path: Path, trial: TrialRecord | None = None) -> RunResult:
    """Read a run folder; `trial`: the sweep's record of it."""
    folder = RunFolder(path)
    settings, environment = folder.read_settings(), folder.read_environment()
    notes: list[str] = []
    if not settings:
        notes.append("config.yaml is missing or cannot be read: its settings are unknown")
    if not environment:
        notes.append("environment.json is missing or damaged: its device and data are unknown")
    metrics = read_metrics(folder.metrics_file)
    num_steps = settings.get("num_steps")
    return RunResult(
        name=path.name,
        path=path,
        settings=settings,
        environment=environment,
        metrics=metrics,
        outcome=find_state(
            folder, metrics, num_steps if isinstance(num_steps, int) else None, trial
        ),
        cost=_cost_of(settings, metrics),
        notes=(*notes, *metrics.notes),
        point=trial.point if trial else path.name.rpartition("+seed=")[0] or None,
    )


def _cost_of(settings: Mapping[str, Any], metrics: Metrics) -> dict[str, float | None]:
    tokens, model = metrics.last("tokens"), model_of(settings)
    flops = tokens * training_flops_per_token(model) if model and tokens else None
    return {
        "num_parameters": sum(count_parameters(model).values()) if model else None,
        "flops": flops,
        "tokens": tokens,
        "tokens_per_second": metrics.typical("tokens_per_second"),
        "mfu": metrics.typical("mfu"),
        "seconds": metrics.last("wall_seconds"),
        "memory_bytes": metrics.last("memory_bytes"),
    }


def find_state(
    folder: RunFolder, metrics: Metrics, num_steps: int | None, trial: TrialRecord | None = None
) -> RunState:
    """The state by the sweep's record, outcome.json, or the last metrics."""
    found: Any
    found, reason = folder.find_state(metrics.last_step, num_steps)
    status = None if trial is None else trial.status
    if trial is not None and (status == "diverged" or (status == "failed" and found != "running")):
        return RunState(trial.status, reason or trial.reason)
    if found in ("running", "failed", "diverged"):
        return RunState(found, reason)
    if metrics.ends_without_loss and folder.read_outcome() is None:
        return RunState("diverged", "the last loss is not finite")
    if not metrics.num_lines:
        return RunState("empty")
    return RunState("finished") if found == "finished" else RunState("unfinished", reason)
