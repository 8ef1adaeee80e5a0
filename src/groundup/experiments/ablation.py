"""Ablations: runs with one part of a recipe removed or replaced.

A variant trains on as many tokens as the base, and has as many parameters if d_ff can compensate
for the difference. Each is compared at its own best learning rate.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from groundup.errors import ConfigError, did_you_mean
from groundup.experiments.spec import SweepConfig, base_config
from groundup.experiments.statistics import Interval
from groundup.experiments.trials import LEARNING_RATE, TrialRecord, model_with, summarize
from groundup.model.config import ModelConfig
from groundup.planner.parameters import count_parameters
from groundup.runs.config import RunConfig

BASE = "base"
# Maximum difference in parameters, as a fraction of the base's, for a matched variant.
_MAX_DIFFERENCE = 0.02

_log = logging.getLogger(__name__)


@dataclass
class TriedRates:
    """A variant's results by learning rate with the first seed, without failed trials."""

    losses: dict[float, float] = field(default_factory=dict)
    """Of finished trials."""
    lost: set[float] = field(default_factory=set)
    """Diverged trials, which count as worse than any finished one."""

    @property
    def rates(self) -> list[float]:
        return sorted({*self.losses, *self.lost})

    @property
    def best(self) -> float | None:
        """The rate with the lowest loss, if any finished; in a tie the smallest."""
        return min(self.losses, key=lambda rate: (self.losses[rate], rate), default=None)

    @property
    def is_at_edge(self) -> bool:
        return self.best is not None and self.best in (self.rates[0], self.rates[-1])


class AblationRow(NamedTuple):
    """One variant at its best learning rate."""

    variant: str
    num_parameters: int
    tried: TriedRates
    loss: Interval | None
    """None if no run finished at any learning rate."""
    difference: float | None
    """Mean loss minus the base's; above 0 the variant is worse."""
    is_clear: bool
    """Whether the intervals of variant and base do not overlap."""
    diverged_at: list[float]


def make_ablations(base: RunConfig, names: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """All variants or those named, by name; the base first."""
    model, has_muon = base.model, base.optimizer.name == "muon"
    changes: dict[str, dict[str, Any]] = {
        name: {"model.norm": norm}
        for norm, name in (("none", "no-norm"), ("post", "post-norm"), ("pre", "pre-norm"))
        if model.norm != norm
    }
    positions = {"rope": {"model.positions": "rope"}}
    removed = {"no-positions": {"model.positions": "none"}}
    changes |= positions if model.positions == "none" else removed
    feed_forward = "silu" if model.feed_forward == "swiglu" else "swiglu"
    changes[feed_forward] = {"model.feed_forward": feed_forward}
    tied = "untied-embeddings" if model.tie_embeddings else "tied-embeddings"
    changes[tied] = {"model.tie_embeddings": not model.tie_embeddings}
    changes["no-qk-norm" if model.qk_norm else "qk-norm"] = {"model.qk_norm": not model.qk_norm}
    optimizer = "adamw" if has_muon else "muon"
    changes[optimizer] = {"optimizer.name": optimizer}
    for name in names:
        if name not in changes:
            raise ConfigError(f"unknown ablation {name}: {did_you_mean(name, changes)}")
    return {BASE: {}} | {n: _matched(model, n, changes[n]) for n in names or changes}


def match_parameters(config: ModelConfig, num_parameters: int) -> ModelConfig:
    """The model with the d_ff that comes closest to this number of parameters."""
    if config.num_layers == 0:
        return config
    without = _count(config.model_copy(update={"d_ff": 1}))
    per_unit = _count(config.model_copy(update={"d_ff": 2})) - without
    units = 1 + (num_parameters - without) / per_unit
    # Multiples of 8 suit tensor cores; tiny models need finer steps.
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
    """The sweep of an ablation: every variant at every learning rate."""
    rates = list(learning_rates) or [base.optimizer.learning_rate * f for f in (0.5, 1.0, 2.0)]
    return SweepConfig(
        name=name,
        kind="ablation",
        why="What does each part of the recipe contribute, at its own best learning rate?",
        base=base.model_dump(mode="json"),
        variants=make_ablations(base, variants),
        grid={LEARNING_RATE: sorted(rates)},
        seeds=list(seeds),
        tokens=tokens,
    )


def make_rows(spec: SweepConfig, records: Iterable[TrialRecord]) -> list[AblationRow]:
    """The base first, then the variants from the best to the worst."""
    records = list(records)
    tried = read_tried(spec, records)
    losses = {(r.variant, r.settings.get(LEARNING_RATE)): r.loss for r in summarize(records)}
    base_loss = losses.get((BASE, tried[BASE].best))
    rows = []
    for name, settings in spec.variants.items():
        loss = losses.get((name, tried[name].best))
        diverged_at = {
            record.settings[LEARNING_RATE]
            for record in records
            if record.variant == name and record.status == "diverged"
        }
        rows.append(
            AblationRow(
                variant=name,
                num_parameters=_count(model_with(base_config(spec).model, settings)),
                tried=tried[name],
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


def read_tried(spec: SweepConfig, records: Iterable[TrialRecord]) -> dict[str, TriedRates]:
    """The learning rates tried with the first seed, by variant."""
    tried = {name: TriedRates() for name in spec.variants}
    for record in records:
        if record.seed != spec.seeds[0] or record.variant not in tried:
            continue
        rates, rate = tried[record.variant], float(record.settings[LEARNING_RATE])
        if record.status == "finished" and record.ranking_loss is not None:
            rates.losses[rate] = record.ranking_loss
        elif record.status != "failed":
            rates.lost.add(rate)
    return tried


def _matched(model: ModelConfig, name: str, change: dict[str, Any]) -> dict[str, Any]:
    """The change, with a d_ff that compensates for its difference in parameters, unless that is
    impossible or needs less than a quarter of the base's d_ff."""
    varied, size = model_with(model, change), _count(model)
    matched = varied if varied == model else match_parameters(varied, size)
    is_off = abs(_count(matched) - size) > _MAX_DIFFERENCE * size
    if is_off or 4 * matched.feed_forward_dim < model.feed_forward_dim:
        difference = _count(varied) / size - 1
        _log.warning("%s has %+.0f%% parameters: no d_ff compensates", name, 100 * difference)
        return change
    if matched.feed_forward_dim == model.feed_forward_dim:
        return change
    return {**change, "model.d_ff": matched.feed_forward_dim}


def _count(config: ModelConfig) -> int:
    return sum(count_parameters(config).values())
