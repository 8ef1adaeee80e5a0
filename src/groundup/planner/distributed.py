"""A run on many GPUs: what each holds, what it sends in a step, and how long it waits for that.

ddp   every GPU holds all state; gradients are all-reduced once a step
fsdp  state is sharded over all GPUs; in every micro-batch weights are gathered twice, for the
      forward and the backward pass, and gradients reduce-scattered
hsdp  as fsdp inside a machine; its sums are all-reduced between machines

A collective is a ring through all GPUs: each of n sends (n - 1)/n of the bytes, twice in an
all-reduce, and of what a machine's GPUs send one's part leaves the machine. Communication overlaps
with computation, so a GPU waits for max(0, communication - computation); the exact reduction of ddp
begins after the backward pass and is waited for in full.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from groundup.errors import ConfigError
from groundup.planner.hardware import link_rates
from groundup.planner.memory import StepMemory, choose_micro_batch
from groundup.planner.plan import Plan

Strategy = Literal["ddp", "fsdp", "hsdp"]


@dataclass(frozen=True)
class StrategyPlan:
    """A step of one GPU with one strategy."""

    num_sequences: int
    micro_batch: int
    """Sequences at once; 0 where not even one fits."""
    memory: StepMemory
    peak_bytes: int
    sent_inside_bytes: float
    sent_across_bytes: float
    communication_seconds: float
    exposed_seconds: float
    compute_seconds: float

    @property
    def step_seconds(self) -> float:
        return self.compute_seconds + self.exposed_seconds

    @property
    def efficiency(self) -> float:
        """The speed of all GPUs over that of as many single ones."""
        return self.compute_seconds / self.step_seconds

    def to_json(self) -> dict[str, Any]:
        memory = self.memory
        return {
            "sequences_per_gpu": self.num_sequences,
            "micro_batch": self.micro_batch,
            "fits": self.micro_batch > 0,
            "peak_bytes": self.peak_bytes,
            "weights": memory.weights,
            "gradients": memory.gradients,
            "optimizer_state": memory.optimizer_state,
            "weight_copies": memory.weight_copies,
            "gathered": memory.gathered_bytes,
            "activations": max(1, self.micro_batch) * memory.bytes_per_sequence,
            "sent_inside_bytes": round(self.sent_inside_bytes),
            "sent_across_bytes": round(self.sent_across_bytes),
            "communication_milliseconds": round(1e3 * self.communication_seconds, 3),
            "exposed_milliseconds": round(1e3 * self.exposed_seconds, 3),
            "step_milliseconds": round(1e3 * self.step_seconds, 3),
            "efficiency": round(self.efficiency, 4),
        }


@dataclass(frozen=True)
class DistributedPlan:
    """The plan of a run on many GPUs."""

    plan: Plan
    num_gpus: int
    num_machines: int
    inside_bytes_per_second: float
    across_bytes_per_second: float
    strategies: dict[str, StrategyPlan]
    chosen: Strategy
    """What auto takes."""

    @property
    def seconds(self) -> float:
        return self.plan.duration.num_steps * self.strategies[self.chosen].step_seconds

    @property
    def tokens_per_second(self) -> float:
        return self.plan.num_tokens / self.seconds

    @property
    def dollars(self) -> float | None:
        price = self.plan.duration.price
        return None if price is None else self.num_gpus * self.seconds / 3600 * price[0]

    def to_json(self) -> dict[str, Any]:
        return {
            "num_gpus": self.num_gpus,
            "num_machines": self.num_machines,
            "gpus_per_machine": self.num_gpus // self.num_machines,
            "inside_bytes_per_second": round(self.inside_bytes_per_second),
            "across_bytes_per_second": round(self.across_bytes_per_second),
            "strategy": self.chosen,
            "tokens_per_second": round(self.tokens_per_second),
            "seconds": round(self.seconds),
            "dollars": None if self.dollars is None else round(self.dollars, 2),
            "strategies": {name: one.to_json() for name, one in self.strategies.items()},
        }


def plan_distributed(
    plan: Plan,
    *,
    num_gpus: int,
    gpus_per_machine: int = 8,
    micro_batch: int | None = None,
    reduce_bytes: int = 4,
    across_bytes_per_second: float | None = None,
) -> DistributedPlan:
    """Every strategy for a run that was planned on one GPU.

    micro_batch: sequences at once; as many as fit if None.
    reduce_bytes: of one gradient on its way to other GPUs.
    across_bytes_per_second: of each GPU to other machines; the table's if None.
    """
    if plan.memory.execution.device == "mps":
        raise ConfigError(f"torch connects no GPUs like {plan.duration.device}: omit --gpus")
    num_local = min(num_gpus, gpus_per_machine)
    num_machines, rest = divmod(num_gpus, num_local)
    if rest:
        raise ConfigError(
            f"{num_gpus} GPUs do not fill machines of {gpus_per_machine}: give --gpus a multiple "
            f"of --gpus-per-machine"
        )
    num_sequences, rest = divmod(plan.batch_size, num_gpus)
    if rest:
        raise ConfigError(
            f"a batch of {plan.batch_size} sequences cannot be divided among {num_gpus} GPUs: "
            f"give --batch-size a multiple of --gpus"
        )
    inside, across = link_rates(plan.duration.device)
    across = across_bytes_per_second or across
    compute = plan.duration.seconds / plan.duration.num_steps / num_gpus
    sums = plan.num_parameters * reduce_bytes

    def ring(num_bytes: float, num_ranks: int, ranks_per_machine: int) -> tuple[float, float]:
        """Bytes that a GPU sends inside its machine and across, once around."""
        sent = (1 - 1 / num_ranks) * num_bytes
        leaving = sent / ranks_per_machine if num_ranks > ranks_per_machine else 0.0
        return sent - leaving, leaving

    def step(num_shards: int, *, exact: bool = False) -> StrategyPlan:
        memory = replace(plan.memory, is_exact=exact).shard(num_shards)
        size = choose_micro_batch(memory, num_sequences, plan.memory_bytes)
        if micro_batch is not None:
            size = math.gcd(micro_batch, num_sequences)
        num_micro_batches = num_sequences // max(1, size)
        peak = memory.bytes_at(max(1, size), num_micro_batches)
        gathered = (2 * memory.weights * num_shards + sums) * num_micro_batches
        sent_inside, sent_across = ring(gathered, num_shards, num_local)
        num_copies = num_gpus // num_shards
        per_machine = num_local if num_shards == 1 else 1
        copied = ring(2 * sums / num_shards, num_copies, min(per_machine, num_copies))
        sent_inside, sent_across = sent_inside + copied[0], sent_across + copied[1]
        communication = max(sent_inside / inside, sent_across / across)
        return StrategyPlan(
            num_sequences=num_sequences,
            micro_batch=size if peak <= plan.memory_bytes else 0,
            memory=memory,
            peak_bytes=peak,
            sent_inside_bytes=sent_inside,
            sent_across_bytes=sent_across,
            communication_seconds=communication,
            exposed_seconds=communication if exact else max(0.0, communication - compute),
            compute_seconds=compute,
        )

    return DistributedPlan(
        plan=plan,
        num_gpus=num_gpus,
        num_machines=num_machines,
        inside_bytes_per_second=inside,
        across_bytes_per_second=across,
        strategies={
            "ddp": step(1),
            "ddp, exact": step(1, exact=True),
            "fsdp": step(num_gpus),
            "hsdp": step(num_local),
        },
        chosen=choose_strategy(
            plan.memory,
            num_sequences,
            plan.memory_bytes,
            num_gpus=num_gpus,
            gpus_per_machine=num_local,
            micro_batch=micro_batch,
        ),
    )


def choose_strategy(
    memory: StepMemory,
    num_sequences: int,
    memory_bytes: int,
    *,
    num_gpus: int,
    gpus_per_machine: int,
    micro_batch: int | None = None,
) -> Strategy:
    """What `auto` takes: ddp where it fits, hsdp where one of several machines holds the state,
    else fsdp.

    num_sequences, memory_bytes: of each GPU.
    """

    def fits(num_shards: int) -> bool:
        part = memory.shard(num_shards)
        if micro_batch is None:
            return choose_micro_batch(part, num_sequences, memory_bytes) > 0
        size = math.gcd(micro_batch, num_sequences)
        return part.bytes_at(size, num_sequences // size) <= part.usable_bytes(memory_bytes)

    if fits(1):
        return "ddp"
    return "hsdp" if num_gpus > gpus_per_machine and fits(gpus_per_machine) else "fsdp"
