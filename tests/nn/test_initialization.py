"""How weights begin: their spread, their bounds, and the same for the same seed."""

import math

import pytest
import torch
from torch import Tensor

from groundup.nn import Embedding, Linear, TransformerBlock
from groundup.nn.initialization import truncated_normal_

# The deviation of a normal value that is known to lie within three of its deviations.
CUT_AT_THREE = math.sqrt(
    1 - 6 * math.exp(-4.5) / math.sqrt(2 * math.pi) / math.erf(3 / math.sqrt(2))
)


def distance_from_truncated_normal(values: Tensor, std: float) -> float:
    """The greatest gap between the values' distribution and the cut normal one."""
    ordered = values.detach().double().flatten().sort().values / std
    expected = 0.5 + 0.5 * torch.erf(ordered / math.sqrt(2)) / math.erf(3 / math.sqrt(2))
    ranks = (torch.arange(len(ordered)) + 0.5) / len(ordered)
    return (ranks - expected).abs().max().item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("std", [1.0, 0.02])
def test_values_are_normal_within_the_limit(std: float, dtype: torch.dtype) -> None:
    weight = truncated_normal_(torch.empty(400, 500, dtype=dtype), std=std, limit=3 * std)
    wide = weight.double()
    rounding = 1 + torch.finfo(dtype).eps
    assert wide.abs().max() <= 3 * std * rounding
    assert wide.abs().max() > 2.9 * std
    assert abs(wide.mean()) < 0.01 * std
    assert wide.std().item() == pytest.approx(CUT_AT_THREE * std, rel=0.01)
    assert distance_from_truncated_normal(weight, std) < 0.01
    # Cutting values back to the limit would leave a heap there.
    assert (wide.abs() >= 2.99 * std).double().mean() < 5e-4


def test_linear_weights_have_the_variance_of_their_two_sizes() -> None:
    layer = Linear(300, 500)
    std = math.sqrt(2 / 800)
    assert layer.weight.std().item() == pytest.approx(CUT_AT_THREE * std, rel=0.01)
    assert layer.weight.abs().max().item() <= 3 * std * (1 + 1e-6)
    assert distance_from_truncated_normal(layer.weight, std) < 0.01


def test_embeddings_have_variance_one_cut_at_three() -> None:
    layer = Embedding(400, 500)
    assert layer.weight.std().item() == pytest.approx(CUT_AT_THREE, rel=0.01)
    assert layer.weight.abs().max().item() <= 3.0
    assert distance_from_truncated_normal(layer.weight, 1.0) < 0.01


def test_the_same_seed_gives_the_same_weights() -> None:
    def weights(seed: int) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        return TransformerBlock(16, 4, 24, max_seq_len=8, theta=1e4).state_dict()

    first, again, other = weights(3), weights(3), weights(4)
    assert all(torch.equal(first[name], again[name]) for name in first)
    matrices = [name for name in first if "norm" not in name]
    assert not any(torch.equal(first[name], other[name]) for name in matrices)


def test_weights_learn_and_filling_them_is_not_recorded() -> None:
    layer = Linear(3, 4)
    assert layer.weight.requires_grad
    assert layer.weight.is_leaf
    layer.reset_parameters()
    assert layer.weight.grad_fn is None
