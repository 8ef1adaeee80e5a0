"""Ranks as forks of this process, and a tiny model for them to train."""

import json
import os
import socket
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from groundup.distributed.process_group import ProcessGroup, find_process_group, open_process_group
from groundup.model import TransformerLM
from groundup.optim.base import Optimizer
from groundup.optim.clipping import clip_scale


def fork_ranks(measure: Callable[[int], Any], size: int, died: Any = None) -> list[Any]:
    """Run `measure` in a process per rank, with torchrun's variables if there are several.

    died: the result of a rank that died.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    children = []
    for rank in range(size):
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:
            if size > 1:
                os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
                os.environ |= dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
                os.environ |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(size))
            os.write(send, json.dumps(measure(rank)).encode())
            os._exit(0)
        os.close(send)
        children.append((child, receive))
    results = []
    for child, receive in children:
        with open(receive, "rb") as file:
            result = file.read()
        results.append(json.loads(result) if result else died)
        os.waitpid(child, 0)
    return results


def run_ranks(measure: Callable[[ProcessGroup], Any], size: int, minutes: float = 1.0) -> list[Any]:
    """Run `measure` on `size` ranks; the result of a rank that died is None."""

    def measure_in_world(_: int) -> Any:
        torch.set_num_threads(1)
        with open_process_group(find_process_group(), "cpu", minutes) as ranks:
            return measure(ranks)

    return fork_ranks(measure_in_world, size)


def tiny_model(**settings: Any) -> TransformerLM:
    """Two blocks, in float64 by default, with rows that are not divisible by two ranks."""
    torch.manual_seed(0)
    dtype = settings.pop("dtype", torch.float64)
    sizes = {"vocab_size": 21, "context_length": 8, "d_model": 12, "num_layers": 2, "num_heads": 2}
    return TransformerLM(**(sizes | {"d_ff": 15} | settings), dtype=dtype)


def take_steps(
    model: TransformerLM,
    optimizer: Optimizer,
    reduction: Any,
    num_micro_batches: int,
    *,
    first: int = 0,
    end: int = 5,
    max_grad_norm: float | None = None,
) -> list[list[float]]:
    """Take training steps; returns loss and gradient norm of each."""
    ranks = reduction.ranks
    records = []
    for step in range(first, end):
        ids = torch.randint(0, 21, (8, 9), generator=torch.Generator().manual_seed(step))
        own = ids.chunk(ranks.size)[ranks.rank].chunk(num_micro_batches)

        def backward(index: int, own: tuple[Tensor, ...] = own) -> Tensor:
            rows = own[index]
            loss = model.loss(rows[:, :-1], rows[:, 1:], reduction="sum") / 64
            loss.backward()
            return loss.detach()

        parameters = list(model.parameters())
        loss = reduction.sum_gradients(parameters, num_micro_batches, backward)
        norm = reduction.gradient_norm(parameters)
        scale = None if max_grad_norm is None else clip_scale(norm, max_grad_norm)
        optimizer.step(gradient_scale=scale)
        optimizer.zero_grad(set_to_none=True)
        records.append([float(loss), float(norm)])
    return records


def weights(model: nn.Module) -> dict[str, Tensor]:
    """All weights, unsharded."""
    return {
        name: value.full_tensor() if hasattr(value, "full_tensor") else value.clone()
        for name, value in model.state_dict().items()
    }


def difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The maximum difference over all weights; infinite if names differ."""
    if one.keys() != other.keys():
        return float("inf")
    return max(float((one[name] - other[name]).abs().max()) for name in one)
