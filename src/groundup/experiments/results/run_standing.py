"""How a run stands among others: told by its outcome, its metrics and its folder's lock."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from groundup.runs.folder import RunFolder, is_claimed
from groundup.runs.metrics import Metrics

State = Literal["finished", "running", "unfinished", "diverged", "pruned", "failed", "empty"]

_NUM_AT_END = 5
# A run that learned less than this share of its first loss may wander without having diverged.
_LEAST_GAIN = 0.05


@dataclass(frozen=True)
class Standing:
    """How a run stands, in a word and in a sentence."""

    state: State
    sentence: str


def judge(
    folder: RunFolder | None,
    metrics: Metrics,
    num_steps: int | None,
    trial: Mapping[str, Any] | None = None,
) -> Standing:
    """How it stands; what the sweep noted about a trial counts before what the files suggest."""
    status, reason = ((trial or {}).get(key) for key in ("status", "reason"))
    step = metrics.last_step
    outcome = folder.read_outcome() if folder else None
    ending = None if outcome is None else outcome.state
    if "diverged" in (status, ending) or _has_diverged(metrics):
        return Standing("diverged", _describe_divergence(metrics))
    if status == "pruned":
        return Standing(
            "pruned", f"Stopped by the sweep after step {step:,}: {reason or 'hopeless'}"
        )
    if folder is not None and is_claimed(folder.path):
        return Standing("running", f"Still training; these are its figures up to step {step:,}.")
    if "failed" in (status, ending):
        known = outcome.reason if outcome is not None and ending == "failed" else reason
        return Standing("failed", str(known or "It failed; its folder does not say why.")[:600])
    if not metrics.num_lines:
        return Standing("empty", "It has no figures yet.")
    if num_steps is None:
        return Standing("finished", f"Its figures end at step {step:,}.")
    if step < num_steps:
        return Standing("unfinished", f"It ended after step {step:,} of {num_steps:,}.")
    return Standing("finished", f"All {num_steps:,} steps are done.")


def _has_diverged(metrics: Metrics) -> bool:
    """Did the loss end as no number, or lose more than half of all it had gained?"""
    losses = metrics.values("loss")
    if metrics.ends_without_loss:
        return True
    if len(losses) < 2:
        return False
    first, lowest = losses[0], min(losses)
    at_end = statistics.median(losses[-_NUM_AT_END:])
    if first - lowest < _LEAST_GAIN * abs(first):
        return at_end > 1.5 * abs(first)
    return at_end > lowest + (first - lowest) / 2 and len(losses) > _NUM_AT_END


def _describe_divergence(metrics: Metrics) -> str:
    lowest = metrics.lowest("loss")
    if lowest is None:
        return "It diverged: no loss was ever a finite number."
    loss, step = lowest
    end = metrics.last("loss")
    if metrics.ends_without_loss or end is None:
        return f"It diverged: best loss {loss:.4g} at step {step:,}, at the end no finite number."
    if metrics.num_skipped_at_end:
        return (
            f"It diverged: best loss {loss:.4g} at step {step:,}; {describe_last_figures(metrics)}."
        )
    return f"It diverged: best loss {loss:.4g} at step {step:,}, {end:.4g} at the end."


def describe_last_figures(metrics: Metrics) -> str:
    """What the last figures of a run that diverged show, for whoever knows already that it did."""
    num_skipped = metrics.num_skipped_at_end
    if num_skipped:
        last = "its last step" if num_skipped == 1 else f"its last {num_skipped:,} steps"
        return f"{last} could not be taken, for loss or gradients were not finite"
    lowest, end = metrics.lowest("loss"), metrics.last("loss")
    if lowest is None:
        return "its loss was never a finite number"
    if metrics.ends_without_loss or end is None:
        return f"its loss was no finite number at the end, after {lowest[0]:.4g}"
    return (
        f"its training loss was {end:.4g} at the end, after {lowest[0]:.4g} at step {lowest[1]:,}"
    )
