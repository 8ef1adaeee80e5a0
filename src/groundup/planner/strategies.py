"""A run on many GPUs: what each of them holds, and how much of its time waits for the others.

ddp   every GPU holds all state; gradients are all-reduced once a step
fsdp  state is sharded over all GPUs; in every micro-batch each block's weights are gathered for
      its forward and its backward pass, and its gradients reduce-scattered
hsdp  as fsdp inside a machine; its sums are all-reduced between machines
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from groundup.errors import ConfigError
from groundup.planner.communication import Cluster, Group, Traffic
from groundup.planner.memory import TrainingMemory
from groundup.planner.parameters import FLOAT32_BYTES
from groundup.planner.plan import Plan

Strategy = Literal["ddp", "fsdp", "hsdp"]

EXACT = "ddp, exact"
"""Gradients are added in the fixed tree, by recursive halving and doubling."""

# The exact reduction sends and receives pieces of this size.
_PIECE_BYTES = 64 << 20


@dataclass(frozen=True)
class StrategyPlan:
    """A step of a run with one strategy, as each GPU takes it."""

    num_sequences: int
    """Of each GPU in a step."""
    micro_batch: int
    """Sequences at once; 0 where not even one fits."""
    memory: TrainingMemory
    peak_bytes: int
    """With one sequence at a time where none fits."""
    fits: bool
    traffic: Traffic
    compute_seconds: float
    exposed_seconds: float
    """Of the communication, what the GPU waits for."""

    @property
    def step_seconds(self) -> float:
        return self.compute_seconds + self.exposed_seconds

    @property
    def efficiency(self) -> float:
        """The speed of all GPUs over that of as many single ones."""
        return self.compute_seconds / self.step_seconds

    @property
    def activation_bytes(self) -> int:
        return max(1, self.micro_batch) * self.memory.bytes_per_sequence

    def to_json(self) -> dict[str, Any]:
        """All results; bytes are integers."""
        return {
            "sequences_per_gpu": self.num_sequences,
            "micro_batch": self.micro_batch,
            "fits": self.fits,
            "peak_bytes": self.peak_bytes,
            "weights": self.memory.weights,
            "gradients": self.memory.gradients,
            "optimizer_state": self.memory.optimizer_state,
            "weight_copies": self.memory.weight_copies,
            "gathered": self.memory.gathered_bytes,
            "activations": self.activation_bytes,
            "sent_inside_bytes": round(self.traffic.inside_bytes),
            "sent_across_bytes": round(self.traffic.across_bytes),
            "communication_milliseconds": round(1e3 * self.traffic.seconds, 3),
            "exposed_milliseconds": round(1e3 * self.exposed_seconds, 3),
            "step_milliseconds": round(1e3 * self.step_seconds, 3),
            "efficiency": round(self.efficiency, 4),
        }


def plan_strategies(
    plan: Plan,
    cluster: Cluster,
    *,
    batch_size: int | None = None,
    micro_batch: int | None = None,
    reduce_bytes: int = FLOAT32_BYTES,
) -> dict[str, StrategyPlan]:
    """A step with ddp, with ddp and the exact reduction, with fsdp and with hsdp.

    plan: of the run on one GPU.
    cluster: where it runs.
    batch_size: sequences of a step over all GPUs; the plan's if None.
    micro_batch: sequences in memory at once; as many as fit if None.
    reduce_bytes: of a gradient on its way to other GPUs.
    """
    batch_size = plan.batch_size if batch_size is None else batch_size
    num_sequences, rest = divmod(batch_size, cluster.num_gpus)
    if rest:
        raise ConfigError(
            f"a batch of {batch_size} sequences cannot be divided among {cluster.num_gpus} GPUs: "
            f"give --batch-size a multiple of --gpus"
        )
    step = _Step(plan, cluster, num_sequences, micro_batch, plan.num_parameters * reduce_bytes)
    num_local, num_machines = cluster.num_local, cluster.num_machines
    return {
        "ddp": step.with_shards((1, 1), (num_local, num_machines)),
        EXACT: step.with_exact_sums(),
        "fsdp": step.with_shards((num_local, num_machines), (1, 1)),
        "hsdp": step.with_shards((num_local, 1), (1, num_machines)),
    }


def choose_strategy(
    memory: TrainingMemory,
    num_sequences: int,
    memory_bytes: int,
    *,
    num_gpus: int,
    gpus_per_machine: int,
    micro_batch: int | None = None,
) -> Strategy:
    """What `auto` takes: ddp where it fits, hsdp where one of several machines holds the state,
    else fsdp.

    memory: of a step on one GPU.
    num_sequences: of each GPU in a step.
    memory_bytes: what each GPU has.
    num_gpus, gpus_per_machine: of the run.
    micro_batch: sequences in memory at once; as many as fit if None.
    """

    def fits(num_shards: int) -> bool:
        part = sharded(memory, num_shards)
        if micro_batch is None:
            return part.largest_divisor(num_sequences, memory_bytes) > 0
        size = math.gcd(micro_batch, num_sequences)
        return part.fits(size, memory_bytes, num_sequences // size)

    if fits(1):
        return "ddp"
    return "hsdp" if num_gpus > gpus_per_machine and fits(gpus_per_machine) else "fsdp"


def sharded(memory: TrainingMemory, num_shards: int) -> TrainingMemory:
    """The memory of one of `num_shards` GPUs that hold the state of `memory` between them."""
    if num_shards == 1:
        return memory
    return replace(
        memory,
        weights=-(-memory.weights // num_shards),
        gradients=-(-memory.gradients // num_shards),
        optimizer_state=-(-memory.optimizer_state // num_shards),
        update_temporaries=-(-memory.update_temporaries // num_shards),
        num_shards=num_shards,
        adds_in_tree=False,
    )


@dataclass(frozen=True)
class _Step:
    plan: Plan
    cluster: Cluster
    num_sequences: int
    given_micro_batch: int | None
    reduced_bytes: int

    def with_shards(self, shards: Group, copies: Group) -> StrategyPlan:
        """State sharded over one group and copied in the other. All is sent while blocks compute,
        but for the first one's weights, the last one's sums, and what takes longer than that."""
        plan, cluster = self.plan, self.cluster
        num_shards, num_units = shards[0] * shards[1], plan.config.num_layers + 1
        memory = sharded(replace(plan.memory, adds_in_tree=False), num_shards)
        num_micro_batches = self.num_sequences // max(1, self._micro_batch(memory))
        # Whole gradients add up on each GPU until the last micro-batch; shards are summed at once.
        num_times = 1 if num_shards == 1 else num_micro_batches
        weights = cluster.gather(shards, plan.memory.weights, num_units)
        sums = cluster.gather(shards, self.reduced_bytes, num_units)
        # Copies are summed with the last micro-batch.
        last = sums.plus(cluster.all_reduce(copies, self.reduced_bytes / num_shards, num_units))
        forward = self._compute_seconds / num_micro_batches / 3

        def waiting(sums: Traffic) -> float:
            behind = weights.seconds + sums.seconds - 2 * forward
            first = max(weights.seconds / num_units, weights.seconds - forward)
            return first + max(sums.seconds / num_units, behind)

        waits = (num_times - 1) * waiting(sums) + waiting(last)
        once = weights.plus(weights).plus(sums)
        traffic = Traffic(*((num_times - 1) * amount for amount in once))
        traffic = traffic.plus(weights).plus(weights).plus(last)
        on_their_way = self.reduced_bytes if num_shards == 1 < cluster.num_gpus else 0
        return self._result(memory, traffic, waits, on_their_way)

    def with_exact_sums(self) -> StrategyPlan:
        """The exchanges begin when the backward pass has ended."""
        memory = replace(self.plan.memory, adds_in_tree=True)
        traffic = self.cluster.halve_and_double(
            memory.gradients, -(-memory.gradients // _PIECE_BYTES)
        )
        on_their_way = 2 * min(memory.gradients, _PIECE_BYTES) if self.cluster.num_gpus > 1 else 0
        return self._result(memory, traffic, traffic.seconds, on_their_way)

    @property
    def _compute_seconds(self) -> float:
        duration = self.plan.duration
        seconds = duration.flops_per_step / duration.flops_per_second
        return seconds * self.num_sequences / duration.batch_size

    def _micro_batch(self, memory: TrainingMemory) -> int:
        """Sequences at once, 0 where not even one fits."""
        if self.given_micro_batch is not None:
            return math.gcd(self.given_micro_batch, self.num_sequences)
        return memory.largest_divisor(self.num_sequences, self.plan.memory_bytes)

    def _result(
        self, memory: TrainingMemory, traffic: Traffic, exposed_seconds: float, sent_bytes: int
    ) -> StrategyPlan:
        """sent_bytes: of gradients on their way, when activations are gone."""
        micro_batch = self._micro_batch(memory)
        size = max(1, micro_batch)
        num_micro_batches = self.num_sequences // size
        peak = memory.bytes_at(size, num_micro_batches)
        sending = memory.state_bytes + memory.workspaces + memory.gradients + sent_bytes
        room = self.plan.memory_bytes - max(0, sending - peak)
        return StrategyPlan(
            num_sequences=self.num_sequences,
            micro_batch=micro_batch,
            memory=memory,
            peak_bytes=max(peak, sending),
            fits=micro_batch > 0 and memory.fits(size, room, num_micro_batches),
            traffic=traffic,
            compute_seconds=self._compute_seconds,
            exposed_seconds=exposed_seconds,
        )
