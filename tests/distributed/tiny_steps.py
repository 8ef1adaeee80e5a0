"""A tiny model and steps as training takes them, to compare ranks with one process."""

from typing import Any

import torch
from torch import Tensor, nn

from groundup.model import TransformerLM
from groundup.optim.base import Optimizer
from groundup.optim.clipping import clip_scale


def tiny_model(**settings: Any) -> TransformerLM:
    """Two blocks, in float64 by default, with rows that two ranks cannot share evenly."""
    torch.manual_seed(0)
    dtype = settings.pop("dtype", torch.float64)
    sizes = {"vocab_size": 21, "context_length": 8, "d_model": 12, "num_layers": 2, "num_heads": 2}
    return TransformerLM(**(sizes | {"d_ff": 15} | settings), dtype=dtype)


def batch(step: int, num_rows: int = 8) -> Tensor:
    """Ids of a step, for all ranks together."""
    generator = torch.Generator().manual_seed(step)
    return torch.randint(0, 21, (num_rows, 9), generator=generator)


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
    """Steps as training takes them; loss and gradient norm of each."""
    ranks = reduction.ranks
    records = []
    for step in range(first, end):
        ids = batch(step)
        own = ids.chunk(ranks.size)[ranks.rank].chunk(num_micro_batches)

        def backward(index: int, ids: Tensor = ids, own: tuple[Tensor, ...] = own) -> Tensor:
            rows = own[index]
            loss = model.loss(rows[:, :-1], rows[:, 1:], reduction="sum") / ids[:, 1:].numel()
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
    """All weights, whole."""
    return {
        name: value.full_tensor() if hasattr(value, "full_tensor") else value.clone()
        for name, value in model.state_dict().items()
    }


def difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The greatest, over all weights; infinite where names differ."""
    if one.keys() != other.keys():
        return float("inf")
    return max(float((one[name] - other[name]).abs().max()) for name in one)
