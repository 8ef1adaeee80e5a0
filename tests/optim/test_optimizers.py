"""What every optimizer guarantees: steps equal to torch's or the formula's, scaled and skipped
steps, and states that can be saved."""

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from groundup.optim import SGD, AdamW, Muon
from groundup.optim.base import ForeignOptimizer, Optimizer, run_side_by_side
from groundup.optim.build import decay_groups, muon_groups

SHAPES = [(3, 5), (7,), (), (2, 1, 4)]


def adamw_of(model: nn.Module) -> AdamW:
    return AdamW(decay_groups(model, weight_decay=0.1), lr=0.01)


def muon_of(model: nn.Module) -> Muon:
    return Muon(muon_groups(model, learning_rate=0.01, adamw_learning_rate=0.01, weight_decay=0.1))


def averaging(optimizer: Optimizer) -> Optimizer:
    optimizer.average_decay = 0.75
    return optimizer


OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "sgd": lambda model: SGD(model.parameters(), lr=0.1),
    "adamw": adamw_of,
    "muon": muon_of,
    "averaging": lambda model: averaging(muon_of(model)),
}


New = Callable[..., tuple[nn.Module, Optimizer]]


@pytest.fixture(params=OPTIMIZERS)
def new(request: pytest.FixtureRequest, tiny_model: Any, form: str) -> New:
    """`new(device, seed)` makes a model and its optimizer."""

    def make(device: Any = "cpu", seed: int = 0) -> tuple[nn.Module, Optimizer]:
        model = tiny_model(seed=seed).to(device)
        return model, OPTIMIZERS[request.param](model)

    return make


def compute_gradients(model: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(0, 20, (4, 6), generator=generator)
    device = next(model.parameters()).device
    model.zero_grad()
    logits = model(ids[:, :-1].to(device))
    nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten().to(device)).backward()


def train(model: nn.Module, optimizer: Optimizer, steps: range, **options: Any) -> None:
    for step in steps:
        compute_gradients(model, step)
        optimizer.step(**options)


def snapshot(model: nn.Module, optimizer: Optimizer) -> list[Tensor]:
    states = [value for state in optimizer.state.values() for value in state.values()]
    return [one.detach().clone() for one in [*model.parameters(), *states]]


def assert_same_bits(ours: list[Tensor], theirs: list[Tensor]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype == torch.float32
        assert torch.equal(one.view(torch.int32), other.view(torch.int32))


@pytest.mark.parametrize(
    ("num_before", "skip", "poison"),
    [(0, torch.tensor(True), None), (3, torch.tensor(1.0), None), (3, torch.tensor(1.0), math.nan)],
)
def test_a_skipped_step_changes_nothing(
    new: Any, num_before: int, skip: Tensor, poison: float | None, device: torch.device
) -> None:
    pairs = [new(device), new(device)]
    for model, optimizer in pairs:
        train(model, optimizer, range(num_before))
        with torch.no_grad():
            model.lm_head.weight[0, 0] = -0.0
    model, optimizer = pairs[0]
    before = snapshot(model, optimizer)
    compute_gradients(model, 3)
    scale = torch.tensor(0.5, device=device)
    if poison is not None:
        for parameter in model.parameters():
            parameter.grad.fill_(poison)
        scale.fill_(poison)
    optimizer.step(gradient_scale=scale, skip=skip.to(device))
    assert_same_bits(snapshot(model, optimizer)[: len(before)], before)
    # Later steps are as if it had never happened.
    for model, optimizer in pairs:
        train(model, optimizer, range(3, 5))
    assert_same_bits(snapshot(*pairs[0]), snapshot(*pairs[1]))


@pytest.mark.parametrize("options", [{"skip": 0.0}, {"gradient_scale": 1.0}])
def test_scaling_by_one_changes_nothing(
    new: New, options: dict[str, float], device: torch.device
) -> None:
    ours, theirs = new(device), new(device)
    tensors: Any = {name: torch.tensor(value, device=device) for name, value in options.items()}
    train(*ours, range(3), **tensors)
    train(*theirs, range(3))
    assert_same_bits(snapshot(*ours), snapshot(*theirs))


def test_averages_follow_the_weights_and_swap_with_them(tiny_model: Any) -> None:
    model, twin = tiny_model(), tiny_model()
    optimizer, plain = averaging(adamw_of(model)), adamw_of(twin)
    averages = [parameter.detach().clone() for parameter in twin.parameters()]
    for step in range(4):
        train(model, optimizer, range(step, step + 1))
        train(twin, plain, range(step, step + 1))
        for average, parameter in zip(averages, twin.parameters(), strict=True):
            average.mul_(0.75).add_(0.25 * parameter.detach())
    weights = [parameter.detach().clone() for parameter in twin.parameters()]
    assert_same_bits([one.detach() for one in model.parameters()], weights)
    optimizer.exchange_averages()
    torch.testing.assert_close(list(model.parameters()), averages, check_stride=False)
    optimizer.exchange_averages()
    assert_same_bits([one.detach() for one in model.parameters()], weights)


def test_a_loaded_state_continues_exactly_and_is_not_shared(new: Any) -> None:
    model, optimizer = new()
    twin, other = new(seed=1)
    train(model, optimizer, range(4))
    twin.load_state_dict(model.state_dict())
    other.load_state_dict(optimizer.state_dict())
    train(model, optimizer, range(4, 8))
    train(twin, other, range(4, 8))
    assert_same_bits(snapshot(model, optimizer), snapshot(twin, other))


def parameters(dtype: torch.dtype, device: torch.device | str = "cpu") -> list[Tensor]:
    """The first one is not contiguous."""
    torch.manual_seed(0)
    made = [torch.randn(shape, dtype=dtype, device=device) for shape in SHAPES]
    made[0] = made[0].T.contiguous().T
    return [one.requires_grad_() for one in made]


def set_gradients(many: list[list[Tensor]], step: int) -> None:
    """The same gradients for all: for the second parameter on even steps only, for the last
    never."""
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


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize(
    ("dtype", "tolerance", "num_steps"),
    [(torch.float32, 1e-5, 30), (torch.float64, 1e-12, 30), (torch.bfloat16, 4e-2, 4)],
)
def test_adamw_equals_torch_over_many_steps(
    dtype: torch.dtype, tolerance: float, num_steps: int, device: torch.device
) -> None:
    ours, theirs = parameters(dtype, device), parameters(dtype, device)
    optimizer = AdamW(groups(ours), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    twin = torch.optim.AdamW(groups(theirs), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(num_steps):
        set_gradients([ours, theirs], step)
        for group, same in zip(optimizer.param_groups, twin.param_groups, strict=True):
            same["lr"] *= 0.99
            is_tensor = step % 2 and dtype == torch.float32
            group["lr"] = torch.tensor(same["lr"], device=device) if is_tensor else same["lr"]
        optimizer.step()
        twin.step()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
        assert optimizer.state[one].keys() == twin.state[other].keys()
        for key, value in optimizer.state[one].items():
            expected = twin.state[other][key].to(value.device)
            torch.testing.assert_close(value, expected, rtol=tolerance, atol=tolerance)
            assert (key, value.dtype) != ("step", dtype) or dtype == torch.float32


def test_a_copy_steps_like_the_original() -> None:
    parameter = torch.ones(3, 4, requires_grad=True)
    original = Muon([parameter], lr=torch.tensor(0.1), normalize_rows=True)
    twin = copy.deepcopy(original)
    (other,) = twin.param_groups[0]["params"]
    parameter.grad = other.grad = torch.randn(3, 4)
    original.step()
    twin.step()
    assert twin.normalize_rows and torch.equal(parameter, other)


def test_sgd_decays_the_rate_by_the_root_of_the_step(device: torch.device) -> None:
    torch.manual_seed(0)
    ours = torch.randn(4, 3, device=device, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    optimizer, twin = SGD([ours], lr=0.5), torch.optim.SGD([theirs], lr=0.5)
    for step in range(20):
        twin.param_groups[0]["lr"] = 0.5 / math.sqrt(step + 1)
        for parameter, rule in ((ours, optimizer), (theirs, twin)):
            rule.zero_grad()
            (parameter.square().sum() / 2).backward()
            rule.step()
    torch.testing.assert_close(ours, theirs)


def test_parallel_streams_wait_for_earlier_work_and_are_waited_for(device: torch.device) -> None:
    """Slow operations, each on temporary memory that it frees."""
    results = [torch.zeros(1 << 16, device=device) for _ in range(4)]

    def work(given: Tensor, factor: int) -> None:
        value = given.clone()
        for _ in range(50):
            value = value + given
        results[factor].copy_(value * factor)

    for step in range(1, 4):
        given = torch.full((1 << 16,), float(step), device=device)
        run_side_by_side(given.device, [partial(work, given, factor) for factor in range(4)])
        del given
        # Reuses the memory that was freed.
        torch.full((1 << 16,), -1.0, device=device)
        for factor, result in enumerate(results):
            assert (result == 51 * step * factor).all()


def test_any_torch_optimizer_can_scale_and_skip() -> None:
    weight = torch.ones(3, requires_grad=True)
    optimizer = ForeignOptimizer(torch.optim.SGD([weight], lr=1.0))
    for skip, expected in ((1.0, 1.0), (0.0, 0.5)):
        weight.grad = torch.ones(3)
        optimizer.step(gradient_scale=torch.tensor(0.5), skip=torch.tensor(skip))
        assert (weight == expected).all()
