"""One run as its folder tells it: settings, figures, samples, environment, outcome, cost.

Whatever is missing, torn or damaged becomes a note of the run, so that nothing readable is lost.
Which folders are meant is `run_finding`; how runs compare is `groups`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groundup.config import flatten
from groundup.experiments.results.run_cost import Cost, cost_of
from groundup.experiments.results.run_standing import Standing, judge
from groundup.runs.folder import RunFolder
from groundup.runs.metrics import Metrics, Sample
from groundup.runs.metrics_file import read_metrics

_DAY = re.compile(r"\d{4}-\d\d-\d\d")


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
        return _text_or_none(self._data.get("content"))

    @property
    def tokenizer_id(self) -> str | None:
        return _text_or_none(self._data.get("tokenizer"))

    @property
    def day(self) -> str | None:
        """When it began, as 2026-11-15."""
        day = str(self.environment.get("started", ""))[:10]
        return day if _DAY.fullmatch(day) else None

    @property
    def num_steps_done(self) -> int:
        return self.metrics.last_step

    @property
    def samples(self) -> list[Sample]:
        return self.metrics.samples

    @property
    def prompts(self) -> list[str]:
        prompts = self.settings.get("samples.prompts")
        return [str(prompt) for prompt in prompts] if isinstance(prompts, list) else []

    @property
    def _data(self) -> Mapping[str, Any]:
        data = self.environment.get("data")
        return data if isinstance(data, dict) else {}


def read_run(
    path: Path,
    *,
    trial: Mapping[str, Any] | None = None,
) -> RunResult:
    """Read a run folder, or a lone metrics file; `trial` is what a sweep noted about it."""
    folder = RunFolder(path) if path.is_dir() else None
    settings = folder.read_settings() if folder else {}
    environment = folder.read_environment() if folder else {}
    notes: list[str] = []
    if folder is None:
        notes.append("only its figures are given: settings and environment are not known")
    elif not settings:
        what = "cannot be read" if folder.has_run() else "is missing"
        notes.append(f"config.yaml {what}: its settings and planned cost are not known")
    if folder and not environment:
        notes.append("environment.json is missing or damaged: what it ran on is not known")
    if trial is not None and not settings and isinstance(trial.get("settings"), dict):
        settings = dict(flatten(trial["settings"]))
    resumes = environment.get("resumes")
    if isinstance(resumes, list) and resumes:
        notes.append(f"it was resumed {len(resumes):,} time{'s' if len(resumes) > 1 else ''}")
    metrics = read_metrics(folder.metrics_file if folder else path)
    num_steps = settings.get("num_steps")
    outcome = judge(
        folder,
        metrics,
        num_steps if isinstance(num_steps, int) else None,
        trial,
    )
    return RunResult(
        name=path.name if folder else path.stem,
        path=path,
        settings=settings,
        environment=environment,
        metrics=metrics,
        outcome=outcome,
        cost=cost_of(settings, environment, metrics),
        notes=(*notes, *metrics.notes),
        point=_text_or_none(trial.get("point")) if trial else None,
        variant=_text_or_none(trial.get("variant")) if trial else None,
    )


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
