"""What each part of a recipe is worth: runs without it, or with another one in its place.

A variant sees as many tokens as the base and has as many parameters where d_ff can make up for the
difference. Each is judged at its own best learning rate, searched for beyond the list where it lies
at an end of it.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from groundup.errors import ConfigError, did_you_mean
from groundup.experiments.spec import SweepConfig, base_config
from groundup.experiments.statistics import Interval
from groundup.experiments.trials import LEARNING_RATE, TrialRecord, model_with, summarize
from groundup.model.config import ModelConfig
from groundup.planner.parameters import count_parameters
from groundup.runs.config import RunConfig

BASE = "base"
EXTRA_RATES = 3
"""How many learning rates beyond each end of the list a variant may try."""

# Of the base's parameters; a variant that is further off is not matched.
_MOST_OFF = 0.02

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AblationRow:
    """One variant at its best learning rate."""

    variant: str
    settings: dict[str, Any]
    num_parameters: int
    learning_rate: float | None
    """The best one; None if no run at any learning rate came to its end."""
    is_at_edge: bool
    """Is it the first or last of those tried, so that a better one may lie outside?"""
    rates_tried: list[float]
    """With the first seed; one whose run failed was not tried."""
    loss: Interval | None
    difference: float | None
    """Of the mean loss from the base's; above 0 the variant is worse."""
    is_clear: bool
    """Do the intervals of variant and base not overlap?"""
    diverged_at: list[float]


def make_ablations(base: RunConfig, names: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """The variants by name, the base first; all of them, or those asked for."""
    model = base.model
    changes: dict[str, dict[str, Any]] = {}
    for norm, name in (("none", "no-norm"), ("post", "post-norm"), ("pre", "pre-norm")):
        if model.norm != norm:
            changes[name] = {"model.norm": norm}
    if model.positions == "none":
        changes["rope"] = {"model.positions": "rope"}
    else:
        changes["no-positions"] = {"model.positions": "none"}
    feed_forward = "silu" if model.feed_forward == "swiglu" else "swiglu"
    changes[feed_forward] = {"model.feed_forward": feed_forward}
    tied = "untied-embeddings" if model.tie_embeddings else "tied-embeddings"
    changes[tied] = {"model.tie_embeddings": not model.tie_embeddings}
    changes["no-qk-norm" if model.qk_norm else "qk-norm"] = {"model.qk_norm": not model.qk_norm}
    optimizer = "adamw" if base.optimizer.name == "muon" else "muon"
    changes[optimizer] = {"optimizer.name": optimizer}
    for name in names:
        if name not in changes:
            raise ConfigError(f"there is no ablation {name}: {did_you_mean(name, changes)}")
    chosen = {name: changes[name] for name in names or changes}
    matched = {name: _matched(base.model, name, change) for name, change in chosen.items()}
    return {BASE: {}, **matched}


def match_parameters(config: ModelConfig, num_parameters: int) -> ModelConfig:
    """The model with the inner size of its feed-forward layers that comes closest to the number."""
    if config.num_layers == 0:
        return config
    without = _count(config.model_copy(update={"d_ff": 1}))
    per_unit = _count(config.model_copy(update={"d_ff": 2})) - without
    units = 1 + (num_parameters - without) / per_unit
    # Sizes that are no multiple of this waste matrix units; on tiny models it would be too coarse.
    step = 8 if units >= 256 else 1
    return config.model_copy(update={"d_ff": max(step, step * round(units / step))})


def ablation_spec(
    base: RunConfig,
    *,
    name: str = "ablations",
    variants: Sequence[str] = (),
    learning_rates: Sequence[float] = (),
    seeds: Sequence[int] = (0,),
    tokens: int | None = None,
) -> SweepConfig:
    """The sweep behind an ablation: every variant at every learning rate."""
    rates = list(learning_rates) or [base.optimizer.learning_rate * f for f in (0.5, 1.0, 2.0)]
    return SweepConfig(
        name=name,
        kind="ablation",
        why="What is each part of the recipe worth, at its own best learning rate?",
        base=base.model_dump(mode="json"),
        variants=make_ablations(base, variants),
        grid={LEARNING_RATE: sorted(rates)},
        seeds=list(seeds),
        tokens=tokens,
    )


def make_rows(spec: SweepConfig, records: Iterable[TrialRecord]) -> list[AblationRow]:
    """The base first, then the variants from the best to the worst."""
    records = _own(spec, records)
    tried = read_tried(spec, records)
    losses = {(one.variant, one.settings[LEARNING_RATE]): one.loss for one in summarize(records)}
    base_loss = losses.get((BASE, tried[BASE].best))
    rows = []
    for name, settings in spec.variants.items():
        known = tried[name]
        loss = losses.get((name, known.best))
        diverged_at = {
            record.settings[LEARNING_RATE]
            for record in records
            if record.variant == name and record.status == "diverged"
        }
        rows.append(
            AblationRow(
                variant=name,
                settings=settings,
                num_parameters=_count(model_with(base_config(spec).model, settings)),
                learning_rate=known.best,
                is_at_edge=known.is_at_edge,
                rates_tried=known.rates,
                loss=loss,
                difference=loss.mean - base_loss.mean if loss and base_loss else None,
                is_clear=bool(loss and base_loss and loss.is_apart_from(base_loss)),
                diverged_at=sorted(diverged_at),
            )
        )
    return sorted(
        rows,
        key=lambda row: (row.variant != BASE, row.loss is None, row.loss.mean if row.loss else 0),
    )


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


def read_tried(spec: SweepConfig, records: Iterable[TrialRecord]) -> dict[str, TriedRates]:
    """The learning rates that were tried with the first seed, by variant."""
    tried = {name: TriedRates() for name in spec.variants}
    for record in _own(spec, records):
        if record.seed != spec.seeds[0]:
            continue
        rates = tried[str(record.variant)]
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


def _own(spec: SweepConfig, records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Those of the ablation; its folder may hold those of a sweep around the same base too."""
    names = {name: {*settings, LEARNING_RATE} for name, settings in spec.variants.items()}
    return [
        record
        for record in records
        if record.variant in names
        and LEARNING_RATE in record.settings
        and names[record.variant].issuperset(record.settings)
    ]


def _matched(model: ModelConfig, name: str, change: dict[str, Any]) -> dict[str, Any]:
    """The change, and the inner size that makes up for the parameters it adds or takes away.

    Where none does, or one below a quarter of the base's, the inner size stays as it is.
    """
    varied, size = model_with(model, change), _count(model)
    matched = varied if varied == model else match_parameters(varied, size)
    is_off = abs(_count(matched) - size) > _MOST_OFF * size
    if is_off or 4 * matched.feed_forward_dim < model.feed_forward_dim:
        difference = _count(varied) / size - 1
        _log.warning("%s has %+.0f%% parameters: no d_ff makes up for that", name, 100 * difference)
        return change
    if matched.feed_forward_dim == model.feed_forward_dim:
        return change
    return {**change, "model.d_ff": matched.feed_forward_dim}


def _count(config: ModelConfig) -> int:
    return sum(count_parameters(config).values())
