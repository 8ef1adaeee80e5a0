"""SGD against torch's own with the same falling rate."""

import math
from typing import Any

import pytest
import torch

from groundup.errors import ConfigError
from groundup.optim import SGD


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_step_t_uses_the_rate_over_the_root_of_t_plus_one(
    dtype: torch.dtype, device: torch.device
) -> None:
    torch.manual_seed(0)
    ours = torch.randn(4, 3, dtype=dtype, device=device, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    optimizer, twin = SGD([ours], lr=0.5), torch.optim.SGD([theirs], lr=0.5)
    for step in range(20):
        twin.param_groups[0]["lr"] = 0.5 / math.sqrt(step + 1)
        for parameter, rule in ((ours, optimizer), (theirs, twin)):
            rule.zero_grad()
            (parameter.square().sum() / 2).backward()
            rule.step()
    torch.testing.assert_close(ours, theirs)


def test_parameters_count_their_own_steps() -> None:
    first, second = (torch.zeros(1, requires_grad=True) for _ in range(2))
    optimizer = SGD([first, second], lr=1.0)
    for step in range(4):
        first.grad = torch.ones(1)
        second.grad = torch.ones(1) if step == 3 else None
        optimizer.step()
    assert first.item() == pytest.approx(-sum(1 / math.sqrt(t) for t in range(1, 5)))
    assert second.item() == -1.0


def test_a_closure_is_called_with_gradients_on() -> None:
    parameter = torch.ones(2, requires_grad=True)
    optimizer = SGD([parameter], lr=1.0)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = parameter.sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2.0
    assert torch.equal(parameter, torch.zeros(2))


@pytest.mark.parametrize("lr", [-1.0, float("inf"), None])
def test_a_rate_that_makes_no_sense_is_named(lr: Any) -> None:
    with pytest.raises(ConfigError, match=f"lr.*{lr}"):
        SGD([torch.zeros(1, requires_grad=True)], lr=lr)


def test_nothing_to_learn_is_an_error() -> None:
    with pytest.raises(ConfigError, match="SGD was given no parameters"):
        SGD(iter([]), lr=1.0)
