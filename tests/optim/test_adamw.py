"""AdamW against torch's own, in both of its forms."""

import copy
import logging
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from groundup.errors import ConfigError
from groundup.optim import AdamW, adamw_update

KERNELS = ["fused", "reference"]
SHAPES = [(3, 5), (7,), (), (2, 1, 4)]


def parameters(dtype: torch.dtype, device: torch.device | str = "cpu") -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=dtype, device=device, requires_grad=True) for shape in SHAPES]


def set_gradients(many: list[list[Tensor]], step: int) -> None:
    """The same gradients for all; the second parameter has one on even steps, the last never."""
    torch.manual_seed(1000 + step)
    for index, twins in enumerate(zip(*many, strict=True)):
        size = 10.0 ** (index - 2)
        gradient = torch.randn(twins[0].shape, dtype=torch.float64) * size
        missing = index == len(SHAPES) - 1 or (index == 1 and step % 2)
        for one in twins:
            one.grad = None if missing else gradient.to(one.device, one.dtype)


def groups(many: list[Tensor]) -> list[dict[str, Any]]:
    return [
        {"params": many[:1], "weight_decay": 0.5},
        {"params": many[1:], "lr": 3e-2, "betas": (0.0, 0.5), "eps": 1e-3},
    ]


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(
    ("dtype", "tolerance", "num_steps"),
    [(torch.float32, 1e-5, 60), (torch.float64, 1e-12, 60), (torch.bfloat16, 4e-2, 4)],
)
def test_adamw_is_torchs_over_many_steps(
    kernels: Any, dtype: torch.dtype, tolerance: float, num_steps: int, device: torch.device
) -> None:
    ours, theirs = parameters(dtype, device), parameters(dtype, device)
    optimizer = AdamW(groups(ours), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1, kernels=kernels)
    twin = torch.optim.AdamW(groups(theirs), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(num_steps):
        set_gradients([ours, theirs], step)
        for group, other in zip(optimizer.param_groups, twin.param_groups, strict=True):
            group["lr"] = other["lr"] = other["lr"] * 0.99
        optimizer.step()
        twin.step()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
        assert optimizer.state[one].keys() == twin.state[other].keys()
        for key, value in twin.state[other].items():
            if key == "step":
                assert optimizer.state[one][key].item() == value.item()
            else:
                torch.testing.assert_close(
                    optimizer.state[one][key], value, rtol=tolerance, atol=tolerance
                )


def test_defaults_are_torchs() -> None:
    ours = AdamW([torch.zeros(1, requires_grad=True)]).defaults
    theirs = torch.optim.AdamW([torch.zeros(1, requires_grad=True)]).defaults
    assert all(theirs[key] == value for key, value in ours.items())


@pytest.mark.parametrize("kernels", KERNELS)
def test_state_is_as_promised(kernels: Any, device: torch.device) -> None:
    (parameter, *_) = many = parameters(torch.bfloat16, device)
    set_gradients([many], 0)
    optimizer = AdamW(many, kernels=kernels)
    optimizer.step()
    state = optimizer.state[parameter]
    assert list(state) == ["step", "exp_avg", "exp_avg_sq"]
    assert (state["step"].dtype, state["step"].shape) == (torch.float32, ())
    assert {value.device.type for value in state.values()} == {device.type}
    assert many[-1] not in optimizer.state


@pytest.mark.parametrize("kernels", KERNELS)
def test_types_and_strides_may_be_mixed(kernels: Any) -> None:
    torch.manual_seed(0)
    first = torch.randn(4, 3).T.requires_grad_()
    second = torch.randn(3, dtype=torch.float64, requires_grad=True)
    third = torch.randn(8, 2)[::2].requires_grad_()
    ours = [first, second, third]
    theirs = [one.detach().clone().requires_grad_() for one in ours]
    optimizer = AdamW(ours, lr=0.1, kernels=kernels)
    twin = torch.optim.AdamW(theirs, lr=0.1)
    for _ in range(3):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn(one.shape, dtype=one.dtype)
            other.grad = one.grad.clone()
        optimizer.step()
        twin.step()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_learning_rate_may_be_a_tensor(kernels: Any, device: torch.device) -> None:
    ours, theirs = parameters(torch.float32, device), parameters(torch.float32, device)
    set_gradients([ours, theirs], 0)
    AdamW(ours, lr=torch.tensor(0.01, device=device), kernels=kernels).step()
    AdamW(theirs, lr=0.01, kernels=kernels).step()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(("kernels", "num_calls"), [("fused", 1), ("reference", 0)])
def test_fused_adamw_is_one_call_of_torchs_kernel(
    kernels: Any, num_calls: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Mock(wraps=torch._fused_adamw_)
    monkeypatch.setattr(torch, "_fused_adamw_", kernel)
    many = parameters(torch.float32, device)
    set_gradients([many], 0)
    AdamW(many, kernels=kernels).step()
    assert kernel.call_count == num_calls


def test_a_device_without_a_fused_kernel_gets_the_formula_and_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(adamw_update, "_FUSED_DEVICES", ())
    monkeypatch.setattr(adamw_update, "_devices_told", set())
    ours, theirs = parameters(torch.float32), parameters(torch.float32)
    set_gradients([ours, theirs], 0)
    with caplog.at_level(logging.INFO, "groundup"):
        AdamW(ours).step()
    assert [record.message for record in caplog.records] == [
        "AdamW has no fused kernel on cpu: the plain formula runs there"
    ]
    AdamW(theirs, kernels="reference").step()
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_a_copy_steps_as_the_original_does() -> None:
    parameter = torch.ones(3, requires_grad=True)
    parameter.grad = torch.ones(3)
    original = AdamW([parameter], kernels="reference")
    original.step()
    twin = copy.deepcopy(original)
    (other,) = twin.param_groups[0]["params"]
    other.grad = torch.ones(3)
    original.step()
    twin.step()
    assert twin.kernels == "reference"
    assert torch.equal(parameter, other)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"lr": -1e-3}, "lr.*-0.001"),
        ({"lr": float("nan")}, "lr.*nan"),
        ({"lr": "fast"}, "lr.*'fast'"),
        ({"betas": (1.0, 0.9)}, r"betas\[0\].*1.0"),
        ({"betas": (0.9, -0.1)}, r"betas\[1\].*-0.1"),
        ({"betas": (0.9,)}, r"betas.*\(0.9,\)"),
        ({"betas": 0.9}, "betas.*0.9"),
        ({"eps": 0.0}, "eps.*0.0"),
        ({"weight_decay": -0.1}, "weight_decay.*-0.1"),
        ({"kernels": "quick"}, "kernels is 'quick'"),
    ],
)
def test_settings_that_make_no_sense_are_named(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        AdamW([torch.zeros(2, requires_grad=True)], **options)


def test_groups_are_checked_too() -> None:
    parameter = torch.zeros(2, requires_grad=True)
    with pytest.raises(ConfigError, match=r"weight_decay.*-3"):
        AdamW([{"params": [parameter], "weight_decay": -3}])
    optimizer = AdamW([parameter])
    with pytest.raises(ConfigError, match=r"lr.*-1"):
        optimizer.add_param_group({"params": [torch.zeros(2, requires_grad=True)], "lr": -1})
    assert len(optimizer.param_groups) == 1


def test_nothing_to_learn_is_an_error() -> None:
    with pytest.raises(ConfigError, match="AdamW was given no parameters"):
        AdamW([])
