"""A run on several GPUs: memory per GPU, bytes sent per step, and exposed communication time.

ddp   state is replicated; gradients are all-reduced once per step
fsdp  state is sharded over all GPUs; in each micro-batch, weights are all-gathered twice (forward
      and backward) and gradients reduce-scattered
hsdp  fsdp within each machine; gradients are all-reduced between machines

A collective is a ring: each of n GPUs sends (n - 1)/n of the bytes, twice in an all-reduce; traffic
between machines is that of one GPU per machine. Communication overlaps with computation, except in
the exact reduction, which starts after the backward pass.
"""

from dataclasses import replace
from typing import Any

from groundup.errors import ConfigError
from groundup.planner.hardware import link_rates
from groundup.planner.memory import choose_strategy, find_micro_batch
from groundup.planner.parameters import FLOAT32_BYTES
from groundup.planner.plan import HELD, Plan


def plan_distributed(
    plan: Plan,
    *,
    num_gpus: int,
    gpus_per_machine: int = 8,
    micro_batch: int | None = None,
) -> dict[str, Any]:
    """Extend a plan for one GPU to `num_gpus`, with every sharding strategy, as JSON.

    micro_batch: sequences per forward pass; None: as many as fit.
    """
    if plan.memory.execution.device == "mps":
        raise ConfigError(f"no interconnect is known for {plan.duration.device}; remove --gpus")
    num_local = min(num_gpus, gpus_per_machine)
    num_machines, rest = divmod(num_gpus, num_local)
    if rest:
        raise ConfigError(
            f"{num_gpus} GPUs is not a multiple of {gpus_per_machine} (--gpus-per-machine)"
        )
    batch_size = plan.duration.batch_size
    num_sequences, rest = divmod(batch_size, num_gpus)
    if rest:
        raise ConfigError(
            f"a batch of {batch_size} sequences is not divisible by {num_gpus} GPUs; choose a "
            f"multiple (--batch-size)"
        )
    inside, across = link_rates(plan.duration.device)
    compute = plan.duration.seconds / plan.duration.num_steps / num_gpus
    sums = plan.num_parameters * FLOAT32_BYTES

    def ring(num_bytes: float, num_ranks: int, ranks_per_machine: int) -> tuple[float, float]:
        """Return the bytes that a GPU sends within and between machines, in one pass of a ring."""
        sent = (1 - 1 / num_ranks) * num_bytes
        leaving = sent / ranks_per_machine if num_ranks > ranks_per_machine else 0.0
        return sent - leaving, leaving

    def step(num_shards: int, *, exact: bool = False) -> dict[str, Any]:
        memory = replace(plan.memory, is_exact=exact).shard(num_shards)
        size = find_micro_batch(memory, num_sequences, plan.memory_bytes, micro_batch)
        num_micro_batches = num_sequences // max(1, size)
        gathered = (2 * memory.weights * num_shards + sums) * num_micro_batches
        sent_inside, sent_across = ring(gathered, num_shards, num_local)
        num_copies = num_gpus // num_shards
        per_machine = num_local if num_shards == 1 else 1
        copied = ring(2 * sums / num_shards, num_copies, min(per_machine, num_copies))
        sent_inside, sent_across = sent_inside + copied[0], sent_across + copied[1]
        communication = max(sent_inside / inside, sent_across / across)
        exposed = communication if exact else max(0.0, communication - compute)
        return {
            "sequences_per_gpu": num_sequences,
            "micro_batch": size,
            "fits": size > 0,
            "peak_bytes": memory.bytes_at(max(1, size), num_micro_batches),
            **{name: getattr(memory, name) for name in HELD},
            "gathered": memory.gathered_bytes,
            "activations": max(1, size) * memory.bytes_per_sequence,
            "sent_inside_bytes": round(sent_inside),
            "sent_across_bytes": round(sent_across),
            "communication_milliseconds": round(1e3 * communication, 3),
            "exposed_milliseconds": round(1e3 * exposed, 3),
            "step_milliseconds": round(1e3 * (compute + exposed), 3),
            "efficiency": round(compute / (compute + exposed), 4),
        }

    strategies = {
        "ddp": step(1),
        "ddp, exact": step(1, exact=True),
        "fsdp": step(num_gpus),
        "hsdp": step(num_local),
    }
    chosen = choose_strategy(
        plan.memory,
        num_sequences,
        plan.memory_bytes,
        num_gpus=num_gpus,
        gpus_per_machine=num_local,
        micro_batch=micro_batch,
    )
    exposed_seconds = strategies[chosen]["exposed_milliseconds"] / 1e3
    seconds = plan.duration.num_steps * (compute + exposed_seconds)
    price = plan.duration.price
    return {
        "num_gpus": num_gpus,
        "num_machines": num_machines,
        "gpus_per_machine": num_local,
        "inside_bytes_per_second": round(inside),
        "across_bytes_per_second": round(across),
        "strategy": chosen,
        "tokens_per_second": round(plan.num_tokens / seconds),
        "seconds": round(seconds),
        "dollars": None if price is None else round(num_gpus * seconds / 3600 * price[0], 2),
        "strategies": strategies,
    }
