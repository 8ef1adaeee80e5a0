"""Two ranks train in every strategy; what they differ by from one process goes into a file."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from rank_program import run_ranks
from tiny_steps import difference, take_steps, tiny_model, weights

import groundup.distributed.matrices
from groundup.distributed.matrices import CopiedMatrices
from groundup.distributed.process_group import ONE_PROCESS, ProcessGroup
from groundup.distributed.reduction import FastReduction
from groundup.distributed.sharding import checkpoint_activations, shard
from groundup.optim.build import build_optimizer
from groundup.optim.config import OptimizerConfig
from groundup.optim.muon import Muon
from groundup.optim.orthogonalization import orthogonalize, orthogonalize_each

CPU = torch.device("cpu")
CASES: dict[str, dict[str, Any]] = {
    "adamw": {"max_grad_norm": 0.1, "sizes": {"tie_embeddings": True}},
    "averages": {"ema_fraction": 0.5},
    "compiled": {"activation_checkpointing": True, "compiled": True},
    "muon": {
        "name": "muon",
        "normalize_rows": True,
        "max_grad_norm": 0.1,
        "sizes": {"num_layers": 3},
    },
    "sgd": {"name": "sgd", "learning_rate": 0.1},
    # Only these have the native kernels.
    "float32": {"sizes": {"dtype": torch.float32}, "activation_checkpointing": True},
}
STRATEGIES = {"compiled": ("fsdp",), "muon": ("ddp", "fsdp", "hsdp")}
graphs: list[Any] = []
orthogonalized: list[tuple[int, ...]] = []


def compile_by_counting(graph: Any, _: Any) -> Any:
    graphs.append(graph)
    return graph.forward


def orthogonalize_and_count(matrices: torch.Tensor) -> torch.Tensor:
    orthogonalized.extend(tuple(matrix.shape) for matrix in matrices)
    return orthogonalize(matrices)


def train(
    ranks: ProcessGroup,
    strategy: Any,
    max_grad_norm: float | None = None,
    activation_checkpointing: bool = False,
    compiled: bool = False,
    sizes: Any = (),
    **options: Any,
) -> Any:
    graphs.clear()
    orthogonalized.clear()
    model = tiny_model(gated_attention=True, value_embeddings="projection", **dict(sizes))
    if activation_checkpointing:
        checkpoint_activations(model)
    if compiled and strategy != "one":
        torch._dynamo.reset()
        for block in model.blocks:
            block.compile(dynamic=False, backend=compile_by_counting)
    learning: torch.nn.Module = model
    reduction: Any = FastReduction(ranks if strategy == "ddp" else ONE_PROCESS)
    if is_sharded := strategy in ("fsdp", "hsdp"):
        local_size = 1 if strategy == "hsdp" else ranks.local_size
        reduction = shard(model, dataclasses.replace(ranks, local_size=local_size), strategy, CPU)
        learning = reduction.parameters
    optimizer = build_optimizer(learning, OptimizerConfig(**options), num_steps=5)
    if isinstance(optimizer, Muon) and strategy == "ddp":
        optimizer.matrices = CopiedMatrices(ranks, orthogonalize_and_count)
    elif isinstance(optimizer, Muon) and is_sharded:
        optimizer.matrices = reduction.matrices()
    num_micro_batches = 4 if strategy == "one" else 2
    records = take_steps(
        model, optimizer, reduction, num_micro_batches, max_grad_norm=max_grad_norm
    )
    if optimizer.average_decay is not None:
        # An evaluation of the averages, and no step, before the latest weights are looked at.
        optimizer.exchange_averages()
        with torch.no_grad():
            model.loss(torch.arange(8)[None], torch.arange(8)[None])
        optimizer.exchange_averages()
        records += take_steps(model, optimizer, reduction, num_micro_batches, first=5, end=6)
        optimizer.exchange_averages()
    return weights(model), records, optimizer


def measure(ranks: ProcessGroup) -> Any:
    results: dict[str, Any] = {}
    vars(groundup.distributed.matrices)["orthogonalize"] = orthogonalize_and_count
    for name, options in CASES.items():
        expected, expected_records, _ = train(ranks, "one", **options)
        for strategy in STRATEGIES.get(name, ("ddp", "fsdp")):
            found, records, optimizer = train(ranks, strategy, **options)
            results.setdefault(name, {})[strategy] = {
                "weights": difference(found, expected),
                "records": max(
                    abs(one - other)
                    for pair in zip(records, expected_records, strict=True)
                    for one, other in zip(*pair, strict=True)
                ),
                "graphs": len(graphs),
                "orthogonalized": ranks.gather(list(orthogonalized)),
                "elements": sum(
                    value.numel() for state in optimizer.state.values() for value in state.values()
                ),
            }
    torch.set_num_threads(2)
    matrices = torch.randn(3, 192, 512, generator=torch.Generator().manual_seed(0))
    ways = [CopiedMatrices(some, orthogonalize_each) for some in (ONE_PROCESS, ranks)]
    alone, together = (way.orthogonalize(matrices, (192, 512)) for way in ways)
    results["same bits"] = torch.equal(alone, together)
    return results


if __name__ == "__main__":
    torch.set_num_threads(1)
    Path(sys.argv[1]).write_text(json.dumps(run_ranks(measure, 2)[0]))
