"""Sharded weights, gradients and optimizer state: FSDP2 around `model.blocks`.

A block's weights are all-gathered for its computation and freed after it; its gradients are
reduce-scattered. The model's code and parameter names stay the same. The optimizer works on plain
tensors: each rank's rows of every parameter.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from groundup.distributed.matrices import ShardedMatrices
from groundup.distributed.process_group import ProcessGroup, lost_rank_errors
from groundup.distributed.reduction import Backward
from groundup.model import TransformerLM
from groundup.optim.base import Optimizer
from groundup.optim.clipping import gradient_norm


def checkpoint_activations(model: TransformerLM) -> None:
    """Enable activation checkpointing: keep only each block's input and recompute the rest in
    backward. Call it before compiling; parameter names stay the same."""

    # Not functools.partial, which torch.compile does not trace into.
    def recomputing(forward: Callable[..., Tensor]) -> Callable[..., Any]:
        return lambda *inputs, **options: checkpoint(
            forward, *inputs, use_reentrant=False, preserve_rng_state=False, **options
        )

    for block in model.blocks:
        block.forward = recomputing(block.forward)


def shard(
    model: TransformerLM,
    ranks: ProcessGroup,
    strategy: Literal["fsdp", "hsdp"],
    device: torch.device,
) -> "ShardedReduction":
    """Shard a model in place, so that each rank keeps its rows of every parameter; returns the
    matching reduction.

    The model must be the same on every rank, and already be compiled. fsdp shards over all ranks;
    hsdp shards within each machine and replicates across machines.
    """
    if strategy == "fsdp":
        mesh = init_device_mesh(device.type, (ranks.size,), mesh_dim_names=("shard",))
    else:
        shape = ranks.size // ranks.local_size, ranks.local_size
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh)
        assert isinstance(module, FSDPModule)
        module.set_force_sum_reduction_for_comms(True)
        module.set_gradient_divide_factor(1.0)
    # The entry point of training; the output layer is still unsharded when it returns.
    register_fsdp_forward_method(model, "hidden")
    gathering = model.hidden

    def hidden(*inputs: Any, **options: Any) -> Tensor:
        # An evaluation leaves the weights outside the blocks unsharded; without this, the next step
        # or evaluation would use these stale copies.
        assert isinstance(model, FSDPModule)
        model.reshard()
        return gathering(*inputs, **options)

    model.hidden = hidden  # type: ignore[method-assign]
    return ShardedReduction(model, ranks, mesh)


class LocalParameters(nn.Module):
    """This rank's rows of a sharded model's parameters, under the model's names.

    Plain parameters that share memory with the model's. An optimizer can be built for this module
    instead of the model.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.pairs: list[tuple[str, DTensor, nn.Parameter]] = []
        for name, whole in model.named_parameters():
            assert isinstance(whole, DTensor), name
            rows = nn.Parameter(whole.to_local().detach(), requires_grad=whole.requires_grad)
            self.pairs.append((name, whole, rows))

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, rows) for name, _, rows in self.pairs)

    def state_of(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return `optimizer.state_dict()`, with values of sharded parameters as DTensors."""
        state = optimizer.state_dict()
        full = self._full_tensors(optimizer)
        state["state"] = {
            index: {key: _like(full[index], value) for key, value in values.items()}
            for index, values in state["state"].items()
        }
        return state

    def allocator_for(self, optimizer: Optimizer) -> Callable[[int, Tensor], Tensor]:
        """Return a function that creates the tensors to load a stored `state_of` into."""
        full = self._full_tensors(optimizer)

        def allocate(index: int, value: Tensor) -> Tensor:
            if index >= len(full) or not _is_sharded_alike(value, full[index]):
                return torch.empty(value.shape, dtype=value.dtype)
            rows = full[index].to_local()
            rows = rows.new_empty(rows.shape[: value.ndim], dtype=value.dtype)
            part: Tensor = _like(full[index], rows)
            return part

        return allocate

    def _full_tensors(self, optimizer: Optimizer) -> list[DTensor]:
        sharded = {rows: whole for _, whole, rows in self.pairs}
        return [sharded[one] for group in optimizer.param_groups for one in group["params"]]

    def take_gradients(self) -> None:
        """Move the gradients from the model's parameters to these."""
        for _, whole, rows in self.pairs:
            # torch reallocates unevenly sharded rows once, in the first forward pass.
            rows.data = whole.to_local().detach()
            gradient = whole.grad
            if gradient is not None:
                assert isinstance(gradient, DTensor)
                rows.grad = gradient.to_local()
                whole.grad = None


class ShardedReduction:
    """Leaves each rank its rows of the summed gradients, in `parameters`. Gradients are reduced
    after each micro-batch, so that the full gradients of all blocks are never in memory."""

    def __init__(self, model: TransformerLM, ranks: ProcessGroup, mesh: DeviceMesh) -> None:
        self.ranks = ranks
        self.parameters = LocalParameters(model)
        self._model = model
        self._shard_group = mesh.get_group(mesh.ndim - 1)

    def matrices(self) -> "ShardedMatrices":
        shapes: dict[Tensor, tuple[int, ...]]
        shapes = {rows: tuple(whole.shape) for _, whole, rows in self.parameters.pairs}
        return ShardedMatrices(shapes, self._shard_group)

    def sum_gradients(
        self, parameters: Sequence[Tensor], num_micro_batches: int, backward: Backward
    ) -> Tensor:
        total = torch.zeros((), device=next(self.parameters.parameters()).device)
        with lost_rank_errors():
            for index in range(num_micro_batches):
                # With hsdp, all-reduce across machines only once, after the last micro-batch.
                assert isinstance(self._model, FSDPModule)
                self._model.set_requires_all_reduce(index == num_micro_batches - 1)
                total += backward(index)
            distributed.all_reduce(total)
        self.parameters.take_gradients()
        return total

    def gradient_norm(self, parameters: Sequence[Tensor]) -> Tensor:
        square = gradient_norm(self.parameters.parameters()).square()
        with lost_rank_errors():
            distributed.all_reduce(square, group=self._shard_group)
        return square.sqrt()


def _like(whole: DTensor, rows: Any) -> Any:
    """Wrap this rank's rows in a DTensor sharded like `whole`; return other values unchanged."""
    if not isinstance(rows, Tensor) or not _is_sharded_alike(rows, whole.to_local()):
        return rows
    return DTensor.from_local(
        rows,
        whole.device_mesh,
        whole.placements,
        run_check=False,
        shape=whole.shape[: rows.ndim],
        stride=whole.stride() if rows.ndim == whole.ndim else (1,),
    )


def _is_sharded_alike(value: Tensor, rows: Tensor) -> bool:
    """Whether a value has the same shape as the rows, or one number per row."""
    return value.ndim > 0 and value.shape in (rows.shape, rows.shape[:1])
