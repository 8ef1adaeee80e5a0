"""Low-rank adapters: a few new parameters learn beside frozen weights (LoRA).

A layer's weight W is read as W + B A wherever it is used, so that no layer knows of it. On disk W
keeps its name and the adapter stands beside it; `merge_adapters` makes plain weights of the two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from groundup.nn.linear import Linear

# As torch names a weight that is read through a function, and as files do.
_ORIGINAL, _FUNCTION = ".parametrizations.weight.original", ".parametrizations.weight.0."
_WEIGHT, _ADAPTER = ".weight", ".adapter."


class LowRank(nn.Module):
    """W + B A, with A of (rank, in) normal with variance 1 / in, and B of (out, rank) zero."""

    def __init__(self, weight: Float[Tensor, "out in"], rank: int) -> None:
        super().__init__()
        num_out, num_in = weight.shape
        down = torch.randn(rank, num_in) / math.sqrt(num_in)
        self.down = nn.Parameter(down.to(weight))
        self.up = nn.Parameter(weight.new_zeros(num_out, rank))

    def forward(self, weight: Float[Tensor, "out in"]) -> Float[Tensor, "out in"]:
        return weight + self.up @ self.down


class LearnedRows(nn.Module):
    """W with the rows `ids` replaced by ones that learn: new tokens have nothing to keep."""

    ids: Tensor

    def __init__(self, weight: Float[Tensor, "rows columns"], ids: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer("ids", torch.tensor(ids, dtype=torch.long, device=weight.device))
        self.rows = nn.Parameter(weight.detach()[self.ids].clone())

    def forward(self, weight: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows columns"]:
        return weight.index_copy(0, self.ids, self.rows.to(weight.dtype))


def add_adapters(
    layers: nn.Module, rank: int, tables: Sequence[nn.Module], ids: Sequence[int]
) -> None:
    """Give every linear layer inside `layers` a low-rank adapter, and the rows `ids` of the tables
    values that learn; a table that two modules share is adapted once for both.

    Freeze whatever else should not learn first.
    """
    for layer in list(layers.modules()):
        if isinstance(layer, Linear):
            parametrize.register_parametrization(layer, "weight", LowRank(layer.weight, rank))
    made: dict[int, LearnedRows] = {}
    for table in tables:
        weight = table.weight
        assert isinstance(weight, Tensor)
        rows = made.setdefault(id(weight), LearnedRows(weight, ids))
        parametrize.register_parametrization(table, "weight", rows)


def adapted_state(model: nn.Module) -> dict[str, Tensor]:
    """The model's state under the names of files: each weight as it was, its adapter beside it."""
    return {
        name.replace(_ORIGINAL, _WEIGHT).replace(_FUNCTION, _ADAPTER): value
        for name, value in model.state_dict().items()
    }


def with_torch_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `adapted_state` gave, as `load_state_dict` wants it."""
    adapted = _adapted_layers(state)
    return {
        name.removesuffix(_WEIGHT) + _ORIGINAL
        if name.removesuffix(_WEIGHT) in adapted
        else name.replace(_ADAPTER, _FUNCTION): value
        for name, value in state.items()
    }


def merge_adapters(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights that the model computes with; a state without adapters as it is."""
    merged = {name: value for name, value in state.items() if _ADAPTER not in name}
    for layer in _adapted_layers(state):
        weight = state[layer + _WEIGHT]
        up, down = (state.get(f"{layer}{_ADAPTER}{part}") for part in ("up", "down"))
        if up is not None and down is not None:
            merged[layer + _WEIGHT] = weight + up @ down
        else:
            ids, rows = (state[f"{layer}{_ADAPTER}{part}"] for part in ("ids", "rows"))
            merged[layer + _WEIGHT] = weight.index_copy(0, ids, rows)
    return merged


def _adapted_layers(state: Mapping[str, object]) -> dict[str, None]:
    return {name.partition(_ADAPTER)[0]: None for name in state if _ADAPTER in name}
