"""The plan of a run on many GPUs as one value: every strategy, what auto takes, and how efficiency
falls as GPUs are added."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from groundup.errors import ConfigError
from groundup.planner.communication import Cluster
from groundup.planner.interconnects import choose_interconnects
from groundup.planner.parameters import BFLOAT16_BYTES, FLOAT32_BYTES
from groundup.planner.plan import Plan
from groundup.planner.strategies import Strategy, StrategyPlan, choose_strategy, plan_strategies

_SIZES = (1, 8, 64, 512)
_SECONDS_AN_HOUR = 3_600

Efficiencies = dict[int, dict[str, float | None]]
"""Of every strategy, by the number of GPUs; None where it does not fit."""


@dataclass(frozen=True)
class Scaling:
    """A run on many GPUs."""

    plan: Plan
    """Of the same run on one."""
    cluster: Cluster
    strategies: dict[str, StrategyPlan]
    chosen: Strategy
    """What auto takes."""
    same_batch: Efficiencies
    """Where all GPUs share the batch of the run."""
    same_batch_per_gpu: Efficiencies
    """Where each of them has as many sequences as here."""

    @property
    def tokens_per_second(self) -> float:
        step = self.strategies[self.chosen]
        tokens = self.plan.batch_size * self.plan.config.context_length
        return tokens / step.step_seconds

    @property
    def seconds(self) -> float:
        """Of the whole run with what auto takes."""
        return self.plan.duration.num_steps * self.strategies[self.chosen].step_seconds

    @property
    def dollars(self) -> float | None:
        price = self.plan.duration.price
        if price is None:
            return None
        return self.cluster.num_gpus * self.seconds / _SECONDS_AN_HOUR * price.dollars_per_hour

    def to_json(self) -> dict[str, Any]:
        """All results; counts and bytes are integers."""
        cluster = self.cluster
        return {
            "num_gpus": cluster.num_gpus,
            "num_machines": cluster.num_machines,
            "gpus_per_machine": cluster.num_local,
            "inside": cluster.inside.name,
            "inside_bytes_per_second": round(cluster.inside.bytes_per_second),
            "across": cluster.across.name,
            "across_bytes_per_second": round(cluster.across_bytes_per_second),
            "strategy": self.chosen,
            "tokens_per_second": round(self.tokens_per_second),
            "seconds": round(self.seconds),
            "dollars": None if self.dollars is None else round(self.dollars, 2),
            "strategies": {name: one.to_json() for name, one in self.strategies.items()},
            "efficiency_at_same_batch": _text_keys(self.same_batch),
            "efficiency_at_same_batch_per_gpu": _text_keys(self.same_batch_per_gpu),
        }


def plan_scaling(
    plan: Plan,
    *,
    num_gpus: int,
    gpus_per_machine: int = 8,
    interconnects: Sequence[str] = (),
    micro_batch: int | None = None,
    reduce_dtype: Literal["float32", "bfloat16"] = "float32",
) -> Scaling:
    """The plan of a run on many GPUs.

    plan: of the run on one of them.
    num_gpus, gpus_per_machine: how many, in all and in each machine.
    interconnects: see `choose_interconnects`.
    micro_batch: sequences in memory at once; as many as fit if None.
    reduce_dtype: what gradients are sent in.
    """
    device, memory = plan.duration.device, plan.memory
    if memory.execution.device == "mps":
        raise ConfigError(f"torch connects no GPUs of the kind of {device}: plan without --gpus")
    inside, across = choose_interconnects(device, memory.execution.device, interconnects)
    cluster = Cluster(num_gpus, gpus_per_machine, inside, across)
    reduce_bytes = FLOAT32_BYTES if reduce_dtype == "float32" else BFLOAT16_BYTES

    def step(size: int, batch_size: int) -> dict[str, StrategyPlan]:
        return plan_strategies(
            plan,
            replace(cluster, num_gpus=size),
            batch_size=batch_size,
            micro_batch=micro_batch,
            reduce_bytes=reduce_bytes,
        )

    strategies = step(num_gpus, plan.batch_size)
    num_sequences = plan.batch_size // num_gpus
    sizes = [
        size
        for size in sorted({*_SIZES, num_gpus})
        if size <= gpus_per_machine or size % gpus_per_machine == 0
    ]
    return Scaling(
        plan=plan,
        cluster=cluster,
        strategies=strategies,
        chosen=choose_strategy(
            memory,
            num_sequences,
            plan.memory_bytes,
            num_gpus=num_gpus,
            gpus_per_machine=gpus_per_machine,
            micro_batch=micro_batch,
        ),
        same_batch={
            size: _efficiencies(step(size, plan.batch_size))
            for size in sizes
            if plan.batch_size % size == 0
        },
        same_batch_per_gpu={
            size: _efficiencies(step(size, size * num_sequences)) for size in sizes
        },
    )


def _efficiencies(strategies: dict[str, StrategyPlan]) -> dict[str, float | None]:
    return {
        name: round(one.efficiency, 4) if one.fits else None for name, one in strategies.items()
    }


def _text_keys(table: Efficiencies) -> dict[str, dict[str, float | None]]:
    return {str(size): row for size, row in table.items()}
