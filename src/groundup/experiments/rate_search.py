"""The best of the learning rates that were tried, and which to try next where it is the outermost.

Knows nothing of runs: it reads their records, so a search that was killed goes on from them.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from groundup.experiments.trials import TrialRecord

LEARNING_RATE = "optimizer.learning_rate"


@dataclass
class TriedRates:
    """What the learning rates of one variant came to. A failure says nothing, so it is not here."""

    losses: dict[float, float] = field(default_factory=dict)
    """Of those that finished."""
    lost: set[float] = field(default_factory=set)
    """Those that diverged or were pruned: worse than any that finished."""

    @property
    def rates(self) -> list[float]:
        return sorted({*self.losses, *self.lost})

    @property
    def best(self) -> float | None:
        """The one with the least loss, if any finished; of equal ones the smallest."""
        return min(self.losses, key=lambda rate: (self.losses[rate], rate), default=None)

    @property
    def is_at_edge(self) -> bool:
        """Is the best one the first or last, so that a better one may lie outside?"""
        return self.best is not None and self.best in (self.rates[0], self.rates[-1])


def read_tried(records: Iterable[TrialRecord], seed: int) -> dict[str, TriedRates]:
    """The learning rates that were tried with a seed, by variant."""
    tried: dict[str, TriedRates] = {}
    for record in records:
        if record.variant is None or record.seed != seed:
            continue
        rates = tried.setdefault(record.variant, TriedRates())
        rate = float(record.settings[LEARNING_RATE])
        if record.status == "finished" and record.ranking_loss is not None:
            rates.losses[rate] = record.ranking_loss
        elif record.status != "failed":
            rates.lost.add(rate)
    return tried


def next_rate(
    tried: TriedRates, listed: Sequence[float], asked: Collection[float], max_extra: int
) -> float | None:
    """The rate beyond the best one, as far as the list's last step; None if that would not help.

    Where all diverged, a smaller one may not. A side ends at `max_extra` rates beyond the list, and
    where one that was asked for failed. One listed rate is a choice, and no search.
    """
    listed, rates = sorted(set(listed)), tried.rates
    if len(listed) < 2 or not rates:
        return None
    best = rates[0] if tried.best is None else tried.best
    beyond = None
    if best == rates[0] == min(*asked, *rates):
        num_below = sum(rate < listed[0] for rate in rates)
        beyond = _step_from(best, listed[0] / listed[1]) if num_below < max_extra else None
    elif tried.best == rates[-1] == max(*asked, *rates):
        num_above = sum(rate > listed[-1] for rate in rates)
        beyond = _step_from(best, listed[-1] / listed[-2]) if num_above < max_extra else None
    return None if beyond in asked else beyond


def _step_from(rate: float, ratio: float) -> float:
    """The product in as few digits as tell it apart, two at least: rates are parts of names."""
    for digits in range(2, 18):
        rounded = float(f"{rate * ratio:.{digits}g}")
        if (rounded - rate) * (ratio - 1) > 0:
            break
    return rounded
