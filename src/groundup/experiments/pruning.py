"""Whether a running trial is still worth its time, judged from the metrics that it writes."""

import statistics

from groundup.experiments.spec import PruneConfig
from groundup.experiments.trials import Status, Trial
from groundup.runs.folder import RunFolder
from groundup.runs.metrics import Metrics
from groundup.runs.metrics_file import MetricsReader, read_metrics

Stop = tuple[Status, str]
"""How a trial that should be stopped ends, and why."""

_FEWEST_RIVALS = 3


class Pruner:
    """Looks at running trials and remembers the finished ones to compare with."""

    def __init__(self, rules: PruneConfig) -> None:
        self._rules = rules
        self._readers: dict[str, MetricsReader] = {}
        self._seen: dict[str, tuple[str, int]] = {}
        self._finished: list[tuple[str, int, Metrics]] = []

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
        """Keep the metrics of a run that came to its end, for the others to be measured by."""
        settings = run.read_settings()
        if self._rules.hopeless and settings.get("num_steps"):
            shards, num_steps = str(settings.get("data.shards")), settings["num_steps"]
            self._finished.append((shards, num_steps, read_metrics(run.metrics_file)))

    def _find_hopeless(self, trial: Trial, metrics: Metrics) -> Stop | None:
        """Whether its best loss is above the median of others' at the same fraction of the run."""
        fraction = metrics.last_step / (trial.config.num_steps or float("inf"))
        best = _best_until(metrics, metrics.last_step)
        if best is None or fraction < self._rules.after:
            return None
        shards = str(trial.config.data.shards)
        rivals = [
            _best_until(rival, fraction * num_steps)
            for data, num_steps, rival in self._finished
            if data == shards
        ]
        known = [loss for loss in rivals if loss is not None]
        if len(known) < _FEWEST_RIVALS or best <= (median := statistics.median_low(known)):
            return None
        told = f"best validation loss {best:.4f} after {fraction:.0%} of the run"
        return (
            "pruned",
            f"{told}, where the median of {len(known)} finished trials had {median:.4f}",
        )


def find_divergence(metrics: Metrics, rules: PruneConfig) -> Stop | None:
    """Whether the loss has stayed above where it began, for long enough to be no mere spike."""
    losses = metrics.values("loss")
    newest = losses[1:][-rules.patience :]
    if rules.worse_than_start is None or len(newest) < rules.patience:
        return None
    limit = losses[0] + rules.worse_than_start
    if min(newest) <= limit:
        return None
    return "diverged", f"the loss stayed above {limit:.4g}, after {losses[0]:.4g} at the first step"


def _best_until(metrics: Metrics, step: float) -> float | None:
    losses, indices = metrics.column("validation_loss"), metrics.indices("validation_loss")
    return min((losses[i] for i in indices if metrics.step_of(i) <= step), default=None)
