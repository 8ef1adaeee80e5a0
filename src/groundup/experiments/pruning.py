"""Is a running trial still worth its time? Judged from the metrics that it writes."""

import math
from pathlib import Path

import numpy

from groundup.errors import GroundupError
from groundup.experiments.spec import PruneConfig
from groundup.experiments.trials import Status, Trial
from groundup.runs.folder import RunFolder
from groundup.runs.metrics import Metrics
from groundup.runs.metrics_file import MetricsReader, read_metrics

Stop = tuple[Status, str]
"""How a trial that should be stopped ends, and why."""

Curve = list[tuple[float, float]]
"""(fraction of the run, best validation loss so far), in order."""


class Pruner:
    """Looks at running trials and remembers the curves of finished ones to compare with."""

    def __init__(self, rules: PruneConfig) -> None:
        self._rules = rules
        self._readers: dict[str, MetricsReader] = {}
        self._seen: dict[str, tuple[str, int]] = {}
        self._finished: dict[Path, list[Curve]] = {}

    def look(self, trial: Trial) -> Stop | None:
        """How the trial should end if the newest metrics call for it; parses new lines alone."""
        path = RunFolder(trial.config.run_folder).metrics_file
        reader = self._readers.setdefault(trial.name, MetricsReader(path))
        with reader.reading() as metrics:
            seen = reader.version, metrics.num_lines
            if not metrics.num_lines or seen == self._seen.get(trial.name):
                return None
            self._seen[trial.name] = seen
            return find_divergence(metrics, self._rules) or self._find_hopeless(trial, metrics)

    def remember(self, run: RunFolder) -> None:
        """Keep the curve of a run that came to its end, for the others to be measured by."""
        if not self._rules.hopeless:
            return
        try:
            config = run.read_config()
        except GroundupError:
            # Whoever took the folder away or changed it has not made any other trial worse.
            return
        if config.num_steps is None:
            return
        curve = validation_curve(read_metrics(run.metrics_file), config.num_steps)
        self._finished.setdefault(config.data.shards, []).append(curve)

    def _find_hopeless(self, trial: Trial, metrics: Metrics) -> Stop | None:
        rules = self._rules
        # Losses on other shards say nothing about this trial.
        rivals = self._finished.get(trial.config.data.shards, [])
        num_steps = trial.config.num_steps
        if len(rivals) < rules.min_trials or num_steps is None:
            return None
        curve = validation_curve(metrics, num_steps)
        if not curve or curve[-1][0] < rules.after:
            return None
        fraction, loss = curve[-1]
        # Of each rival the best loss at its last evaluation up to the same fraction of its run.
        until = [[best for at, best in rival if at <= fraction + 1e-9] for rival in rivals]
        known = [losses[-1] for losses in until if losses]
        if len(known) < rules.min_trials:
            return None
        limit = float(numpy.quantile(known, rules.quantile, method="inverted_cdf"))
        if loss <= limit:
            return None
        return (
            "pruned",
            f"best validation loss {loss:.4f} after {fraction:.0%} of the run, where "
            f"{rules.quantile:.0%} of {len(known)} finished trials had {limit:.4f} or less",
        )


def find_divergence(metrics: Metrics, rules: PruneConfig) -> Stop | None:
    """Has the loss stayed above where it began, for long enough to be no mere spike?"""
    losses = metrics.values("loss")
    newest = losses[1:][-rules.patience :]
    if rules.worse_than_start is None or len(newest) < rules.patience:
        return None
    limit = losses[0] + rules.worse_than_start
    if min(newest) <= limit:
        return None
    return (
        "diverged",
        f"the loss was {newest[-1]:.4g} and above {limit:.4g} for {len(newest)} lines in a row, "
        f"after {losses[0]:.4g} at the first step",
    )


def validation_curve(metrics: Metrics, num_steps: int) -> Curve:
    """The best validation loss up to each evaluation, by fraction of the run."""
    curve: Curve = []
    losses, best = metrics.column("validation_loss"), math.inf
    for index in metrics.indices("validation_loss"):
        best = min(best, losses[index])
        curve.append((metrics.step_of(index) / num_steps, best))
    return curve
