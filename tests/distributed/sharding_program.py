"""Program: two gloo ranks match one process in every strategy, in float64."""

import dataclasses
from typing import Any

import pytest
import torch
import torch._dynamo
from forked_ranks import difference, run_ranks, take_steps, tiny_model, weights

import groundup.distributed.matrices
from groundup.distributed.matrices import ReplicatedMatrices
from groundup.distributed.process_group import ONE_PROCESS, ProcessGroup
from groundup.distributed.reduction import FastReduction
from groundup.distributed.sharding import checkpoint_activations, shard
from groundup.optim.build import build_optimizer
from groundup.optim.config import OptimizerConfig
from groundup.optim.muon import Muon
from groundup.optim.orthogonalization import orthogonalize, orthogonalize_each

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
    # Only these have native kernels.
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
        local = dataclasses.replace(ranks, local_size=1) if strategy == "hsdp" else ranks
        reduction = shard(model, local, strategy, torch.device("cpu"))
        learning = reduction.parameters
    optimizer = build_optimizer(learning, OptimizerConfig(**options), num_steps=5)
    if isinstance(optimizer, Muon) and strategy == "ddp":
        optimizer.matrices = ReplicatedMatrices(ranks, orthogonalize_and_count)
    elif isinstance(optimizer, Muon) and is_sharded:
        optimizer.matrices = reduction.matrices()
    num_micro_batches = 4 if strategy == "one" else 2
    records = take_steps(
        model, optimizer, reduction, num_micro_batches, max_grad_norm=max_grad_norm
    )
    if optimizer.average_decay is not None:
        # Evaluate the averaged weights, without a step before the current weights are used again.
        optimizer.exchange_averages()
        with torch.no_grad():
            model.loss(torch.arange(8)[None], torch.arange(8)[None])
        optimizer.exchange_averages()
        records += take_steps(model, optimizer, reduction, num_micro_batches, first=5, end=6)
        optimizer.exchange_averages()
    return weights(model), records, optimizer


def compare(ranks: ProcessGroup) -> bool:
    vars(groundup.distributed.matrices)["orthogonalize"] = orthogonalize_and_count
    num_elements: dict[tuple[str, str], int] = {}
    for name, options in CASES.items():
        expected, expected_records, _ = train(ranks, "one", **options)
        for strategy in STRATEGIES.get(name, ("ddp", "fsdp")):
            found, records, optimizer = train(ranks, strategy, **options)
            is_rounded = name == "float32"
            assert difference(found, expected) < (1e-4 if is_rounded else 1e-14), (name, strategy)
            # Losses are float32 for any dtype of weights.
            close = pytest.approx(torch.tensor(expected_records).numpy(), abs=1e-6, rel=1e-5)
            assert torch.tensor(records).numpy() == close, (name, strategy)
            values = [one for state in optimizer.state.values() for one in state.values()]
            num_elements[name, strategy] = sum(value.numel() for value in values)
            if name == "compiled":
                # Inside checkpointing and sharding, once for all blocks.
                assert len(graphs) == 1
            if name == "muon" and strategy != "hsdp":
                check_matrices(ranks.gather(list(orthogonalized)))
    # Half of the optimizer's state, except for odd numbers of rows and the step counts.
    whole, half = num_elements["adamw", "ddp"], num_elements["adamw", "fsdp"]
    assert half == pytest.approx(whole / 2, rel=0.05)
    # Orthogonalizing one matrix at a time gives the same bits for any world size.
    torch.set_num_threads(2)
    matrices = torch.randn(3, 192, 512, generator=torch.Generator().manual_seed(0))
    ways = [ReplicatedMatrices(some, orthogonalize_each) for some in (ONE_PROCESS, ranks)]
    assert torch.equal(*(way.orthogonalize(matrices, (192, 512)) for way in ways))
    return True


def check_matrices(by_rank: list[list[tuple[int, ...]]]) -> None:
    """Each matrix is orthogonalized once, by one rank; a rank may have one more of each shape."""
    num_steps, num_layers = 5, 3
    expected = num_layers * (4 * [(12, 12)] + [(12, 15)] + 2 * [(15, 12)] + [(2, 12)])
    # And the projection of value embeddings.
    expected.append((12, 12))
    first, second = by_rank
    assert sorted(first + second) == sorted(num_steps * expected)
    assert abs(len(first) - len(second)) <= num_steps * len(set(expected))


if __name__ == "__main__":
    assert run_ranks(compare, 2) == [True, True]
