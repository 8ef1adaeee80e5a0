"""Low-rank adapters (LoRA): train a few new parameters next to frozen weights.

A parametrization replaces a layer's weight W by W + B A, so the layers need not know about it. On
disk, W keeps its name and the adapter is stored next to it; `merge_adapters` folds it into W.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from groundup.nn.linear import Linear

# Names in torch's state dict of a parametrized weight, and names in files.
_ORIGINAL, _FUNCTION = ".parametrizations.weight.original", ".parametrizations.weight.0."
_WEIGHT, _ADAPTER = ".weight", ".adapter."


class LowRank(nn.Module):
    """W + B A, with A (rank, in) initialized to N(0, 1 / in) and B (out, rank) to zero."""

    def __init__(self, weight: Float[Tensor, "out in"], rank: int) -> None:
        super().__init__()
        num_out, num_in = weight.shape
        down = torch.randn(rank, num_in) / math.sqrt(num_in)
        self.down = nn.Parameter(down.to(weight))
        self.up = nn.Parameter(weight.new_zeros(num_out, rank))

    def forward(self, weight: Float[Tensor, "out in"]) -> Float[Tensor, "out in"]:
        return weight + self.up @ self.down


class LearnedRows(nn.Module):
    """W with the rows `ids` replaced by trainable ones, for new tokens without learned values."""

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
    """Add a low-rank adapter to every linear layer in `layers`, and make the rows `ids` of the
    tables trainable. A table shared by two modules is adapted once for both.

    Freeze the other parameters first.
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
    """Return the model's state under the names used in files: weights and adapters, unmerged."""
    return {
        name.replace(_ORIGINAL, _WEIGHT).replace(_FUNCTION, _ADAPTER): value
        for name, value in model.state_dict().items()
    }


def with_torch_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Invert the renaming of `adapted_state`, for `load_state_dict`."""
    adapted = _adapted_layers(state)
    return {
        name.removesuffix(_WEIGHT) + _ORIGINAL
        if name.removesuffix(_WEIGHT) in adapted
        else name.replace(_ADAPTER, _FUNCTION): value
        for name, value in state.items()
    }


def merge_adapters(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Fold adapters into the weights; a state without adapters is returned unchanged."""
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
