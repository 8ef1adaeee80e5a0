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
    """The state of a run, as a word and as a sentence."""

    state: Literal["finished", "running", "unfinished", "diverged", "failed", "empty"]
    sentence: str


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
    status, reason = (trial.status, trial.reason) if trial else (None, None)
    step = metrics.last_step
    state, why = folder.find_state(step, num_steps)
    is_unsaid = state != "running" and folder.read_outcome() is None
    if "diverged" in (status, state) or (is_unsaid and metrics.ends_without_loss):
        return RunState("diverged", f"It diverged: {describe_divergence(metrics)}.")
    if state == "running":
        return RunState("running", f"Still training; metrics are up to step {step:,}.")
    if "failed" in (status, state):
        known = why if state == "failed" else reason
        return RunState("failed", str(known or "It failed; the run folder does not say why.")[:600])
    if not metrics.num_lines:
        return RunState("empty", "No metrics yet.")
    # Held-out text or the clock may end a run before its last step.
    if state != "finished" and num_steps is not None and step < num_steps:
        return RunState("unfinished", f"It ended after step {step:,} of {num_steps:,}.")
    return RunState("finished", f"It ended after step {step:,}.")


def describe_divergence(metrics: Metrics) -> str:
    """Describe a divergence from the run's last metrics."""
    if metrics.num_skipped_at_end:
        return (
            f"its last steps ({metrics.num_skipped_at_end:,}) were skipped because the loss or "
            f"gradients were not finite"
        )
    lowest, end = metrics.lowest("loss"), metrics.last("loss")
    if lowest is None:
        return "its loss was never finite"
    last = "not finite" if metrics.ends_without_loss or end is None else f"{end:.4g}"
    return f"its loss was {last} at the end, after {lowest[0]:.4g} at step {lowest[1]:,}"
