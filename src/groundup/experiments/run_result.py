"""One run as its folder tells it: settings, metrics, samples, environment, state, cost.

Whatever is missing, torn or damaged becomes a note of the run, so that nothing readable is lost.
Which folders are meant is `run_finding`; how runs compare is `groups`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from groundup.config import flatten
from groundup.experiments.cost import Cost, cost_of
from groundup.runs.folder import RunFolder
from groundup.runs.metrics import Metrics
from groundup.runs.metrics_file import read_metrics
from groundup.runs.outcome import judge

_DAY = re.compile(r"\d{4}-\d\d-\d\d")
State = Literal["finished", "running", "unfinished", "diverged", "pruned", "failed", "empty"]


@dataclass(frozen=True)
class Standing:
    """How a run stands, in a word and in a sentence."""

    state: State
    sentence: str


@dataclass(frozen=True)
class RunResult:
    """What is known of one run."""

    name: str
    path: Path
    settings: Mapping[str, Any]
    """By flat dotted names, as config.yaml has them."""
    environment: Mapping[str, Any]
    metrics: Metrics
    outcome: Standing
    cost: Cost
    notes: tuple[str, ...]
    """What was odd about the folder, a sentence each."""
    point: str | None = None
    """What the sweep that made it tries with it; the same for all seeds."""
    variant: str | None = None
    """The sweep's bundle of settings that it has, by name."""

    @property
    def seed(self) -> int | None:
        seed = self.settings.get("seed", self.environment.get("seed"))
        return seed if isinstance(seed, int) else None

    @property
    def data_id(self) -> str | None:
        """Content id of the shards it learned from and was measured on."""
        return self._id_of("content")

    @property
    def tokenizer_id(self) -> str | None:
        return self._id_of("tokenizer")

    @property
    def day(self) -> str | None:
        """When it began, as 2026-11-15."""
        day = str(self.environment.get("started", ""))[:10]
        return day if _DAY.fullmatch(day) else None

    @property
    def prompts(self) -> list[str]:
        prompts = self.settings.get("samples.prompts")
        return [str(prompt) for prompt in prompts] if isinstance(prompts, list) else []

    def _id_of(self, name: str) -> str | None:
        data = self.environment.get("data")
        return _text_or_none(data.get(name)) if isinstance(data, dict) else None


def read_run(path: Path, *, trial: Mapping[str, Any] | None = None) -> RunResult:
    """Read a run folder, or a lone metrics file; `trial` is what a sweep noted about it."""
    folder = RunFolder(path) if path.is_dir() else None
    settings = folder.read_settings() if folder else {}
    environment = folder.read_environment() if folder else {}
    notes: list[str] = []
    if folder is None:
        notes.append("only its metrics are given: settings and environment are not known")
    elif not settings:
        what = "cannot be read" if folder.has_run() else "is missing"
        notes.append(f"config.yaml {what}: its settings and planned cost are not known")
    if folder and not environment:
        notes.append("environment.json is missing or damaged: what it ran on is not known")
    resumes = environment.get("resumes")
    if isinstance(resumes, list) and resumes:
        notes.append(f"it was resumed {len(resumes):,} time{'s' if len(resumes) > 1 else ''}")
    noted = dict(trial or {})
    if not settings and isinstance(noted.get("settings"), dict):
        settings = dict(flatten(noted["settings"]))
    metrics = read_metrics(folder.metrics_file if folder else path)
    num_steps = settings.get("num_steps")
    num_steps = num_steps if isinstance(num_steps, int) else None
    return RunResult(
        name=path.name if folder else path.stem,
        path=path,
        settings=settings,
        environment=environment,
        metrics=metrics,
        outcome=find_standing(folder, metrics, num_steps, noted),
        cost=cost_of(settings, metrics),
        notes=(*notes, *metrics.notes),
        point=_text_or_none(noted.get("point")),
        variant=_text_or_none(noted.get("variant")),
    )


def find_standing(
    folder: RunFolder | None,
    metrics: Metrics,
    num_steps: int | None,
    trial: Mapping[str, Any] | None = None,
) -> Standing:
    """How it stands: as the sweep noted, as outcome.json says, or as the last metrics suggest."""
    status, reason = ((trial or {}).get(key) for key in ("status", "reason"))
    step = metrics.last_step
    judged = judge(folder, step, num_steps) if folder else None
    ending = judged.state if judged else "unknown"
    is_unsaid = folder is None or (ending != "running" and folder.read_outcome() is None)
    if "diverged" in (status, ending) or (is_unsaid and metrics.ends_without_loss):
        return Standing("diverged", f"It diverged: {describe_divergence(metrics)}.")
    if status == "pruned":
        return Standing(
            "pruned", f"Stopped by the sweep after step {step:,}: {reason or 'hopeless'}"
        )
    if ending == "running":
        return Standing("running", f"Still training; these are its metrics up to step {step:,}.")
    if "failed" in (status, ending):
        known = judged.reason if judged and ending == "failed" else reason
        return Standing("failed", str(known or "It failed; its folder does not say why.")[:600])
    if not metrics.num_lines:
        return Standing("empty", "It has no metrics yet.")
    if num_steps is None:
        return Standing("finished", f"Its metrics end at step {step:,}.")
    if step < num_steps:
        return Standing("unfinished", f"It ended after step {step:,} of {num_steps:,}.")
    return Standing("finished", "All steps are done.")


def describe_divergence(metrics: Metrics) -> str:
    """What the last metrics of a run that diverged show, for whoever knows that it did."""
    num_skipped = metrics.num_skipped_at_end
    if num_skipped:
        last = "its last step" if num_skipped == 1 else f"its last {num_skipped:,} steps"
        return f"{last} could not be taken, for loss or gradients were not finite"
    lowest, end = metrics.lowest("loss"), metrics.last("loss")
    if lowest is None:
        return "its loss was never a finite number"
    best = f"{lowest[0]:.4g} at step {lowest[1]:,}"
    if metrics.ends_without_loss or end is None:
        return f"its loss was no finite number at the end, after {best}"
    return f"its training loss was {end:.4g} at the end, after {best}"


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
