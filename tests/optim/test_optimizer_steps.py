"""What every optimizer owes: scaled and skipped steps, and states that can be stored."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from groundup.optim import SGD, AdamW, Muon, clip_gradients, clip_scale, gradient_norm
from groundup.optim.base import Optimizer
from groundup.optim.parameter_groups import decay_groups, muon_groups


def make_muon(model: nn.Module, kernels: Any) -> Muon:
    return Muon(muon_groups(model, learning_rate=0.01, weight_decay=0.1), kernels=kernels)


OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "sgd": lambda model: SGD(model.parameters(), lr=0.1),
    "adamw-fused": lambda model: AdamW(decay_groups(model, weight_decay=0.1), lr=0.01),
    "adamw-reference": lambda model: AdamW(
        decay_groups(model, weight_decay=0.1), lr=0.01, kernels="reference"
    ),
    "muon-fused": lambda model: make_muon(model, "fused"),
    "muon-reference": lambda model: make_muon(model, "reference"),
}


@pytest.fixture(params=OPTIMIZERS)
def make_optimizer(request: pytest.FixtureRequest) -> Callable[[nn.Module], Optimizer]:
    return OPTIMIZERS[request.param]


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


@pytest.mark.parametrize("poison", [None, float("nan"), float("inf")])
def test_a_skipped_step_leaves_everything_to_the_bit(
    make_optimizer: Any, tiny_model: Any, poison: float | None, device: torch.device
) -> None:
    model = tiny_model().to(device)
    optimizer = make_optimizer(model)
    train(model, optimizer, range(3))
    with torch.no_grad():
        model.lm_head.weight[0, 0] = -0.0
    before = snapshot(model, optimizer)
    compute_gradients(model, 3)
    scale = torch.tensor(0.5, device=device)
    if poison is not None:
        for parameter in model.parameters():
            parameter.grad.fill_(poison)
        scale.fill_(float("nan"))
    optimizer.step(gradient_scale=scale, skip=torch.tensor(1.0, device=device))
    assert_same_bits(snapshot(model, optimizer), before)

    # And the run goes on as though the step had never been.
    twin = tiny_model().to(device)
    other = make_optimizer(twin)
    train(twin, other, range(3))
    with torch.no_grad():
        twin.lm_head.weight[0, 0] = -0.0
    train(model, optimizer, range(3, 5))
    train(twin, other, range(3, 5))
    assert_same_bits(snapshot(model, optimizer), snapshot(twin, other))


def test_the_first_step_may_be_skipped(make_optimizer: Any, tiny_model: Any) -> None:
    model, twin = tiny_model(), tiny_model()
    optimizer, other = make_optimizer(model), make_optimizer(twin)
    train(model, optimizer, range(1), skip=torch.tensor(1.0))
    train(model, optimizer, range(1, 3))
    train(twin, other, range(1, 3))
    assert_same_bits(snapshot(model, optimizer), snapshot(twin, other))


def test_a_step_not_skipped_is_an_ordinary_one(
    make_optimizer: Any, tiny_model: Any, device: torch.device
) -> None:
    model, twin = tiny_model().to(device), tiny_model().to(device)
    optimizer, other = make_optimizer(model), make_optimizer(twin)
    train(model, optimizer, range(3), skip=torch.tensor(0.0, device=device))
    train(twin, other, range(3))
    assert_same_bits(snapshot(model, optimizer), snapshot(twin, other))


def test_a_truth_value_skips_too(make_optimizer: Any, tiny_model: Any) -> None:
    model = tiny_model()
    optimizer = make_optimizer(model)
    train(model, optimizer, range(1))
    before = snapshot(model, optimizer)
    train(model, optimizer, range(1, 2), skip=torch.tensor(True))
    assert_same_bits(snapshot(model, optimizer), before)


def test_a_scale_of_one_changes_no_bit(make_optimizer: Any, tiny_model: Any) -> None:
    model, twin = tiny_model(), tiny_model()
    optimizer, other = make_optimizer(model), make_optimizer(twin)
    train(model, optimizer, range(3), gradient_scale=torch.tensor(1.0))
    train(twin, other, range(3))
    assert_same_bits(snapshot(model, optimizer), snapshot(twin, other))


def test_passing_the_clip_scale_equals_clipping_first(
    make_optimizer: Any, tiny_model: Any, device: torch.device
) -> None:
    model, twin = tiny_model().to(device), tiny_model().to(device)
    optimizer, other = make_optimizer(model), make_optimizer(twin)
    for step in range(5):
        compute_gradients(model, step)
        optimizer.step(gradient_scale=clip_scale(gradient_norm(model.parameters()), 0.1))
        compute_gradients(twin, step)
        clip_gradients(twin.parameters(), 0.1)
        other.step()
    for one, expected in zip(snapshot(model, optimizer), snapshot(twin, other), strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-4, atol=1e-5)


def test_a_stored_state_continues_to_the_bit(make_optimizer: Any, tiny_model: Any) -> None:
    model = tiny_model()
    optimizer = make_optimizer(model)
    train(model, optimizer, range(4))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    train(model, optimizer, range(4, 8))

    file.seek(0)
    stored = torch.load(file, weights_only=True)
    resumed = tiny_model(seed=1)
    resumed.load_state_dict(stored["model"])
    again = make_optimizer(resumed)
    again.load_state_dict(stored["optimizer"])
    train(resumed, again, range(4, 8))
    assert_same_bits(snapshot(model, optimizer), snapshot(resumed, again))


def test_a_loaded_state_is_not_shared(make_optimizer: Any, tiny_model: Any) -> None:
    model, twin = tiny_model(), tiny_model()
    optimizer, other = make_optimizer(model), make_optimizer(twin)
    train(model, optimizer, range(3))
    train(twin, other, range(3))
    before = copy.deepcopy(optimizer.state_dict())
    other.load_state_dict(optimizer.state_dict())
    train(twin, other, range(3, 5))
    for key, state in before["state"].items():
        for name, value in state.items():
            assert torch.equal(optimizer.state_dict()["state"][key][name], value)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")
def test_a_state_from_the_cpu_continues_on_cuda(make_optimizer: Any, tiny_model: Any) -> None:
    model = tiny_model()
    optimizer = make_optimizer(model)
    train(model, optimizer, range(2))
    moved = tiny_model(seed=1).cuda()
    moved.load_state_dict(model.state_dict())
    again = make_optimizer(moved)
    again.load_state_dict(optimizer.state_dict())
    states = [value for state in again.state.values() for value in state.values()]
    assert all(value.is_cuda for value in states)
    train(moved, again, range(2, 4))
    train(model, optimizer, range(2, 4))
    for one, other in zip(moved.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=2e-2, atol=2e-3)


def test_training_overfits_one_batch(make_optimizer: Any, tiny_model: Any) -> None:
    model = tiny_model()
    optimizer = make_optimizer(model)
    for group in optimizer.param_groups:
        group["lr"] *= 10 if isinstance(optimizer, SGD) else 3
    ids = torch.arange(20)
    loss = torch.tensor(0.0)
    for _ in range(60):
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(ids), ids.roll(1))
        loss.backward()
        optimizer.step()
    assert loss.item() < 1.5


def test_the_two_forms_agree(tiny_model: Any) -> None:
    for name in ("adamw", "muon"):
        models = [tiny_model(), tiny_model()]
        for model, kernels in zip(models, ["fused", "reference"], strict=True):
            train(model, OPTIMIZERS[f"{name}-{kernels}"](model), range(10))
        for one, other in zip(*(model.parameters() for model in models), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
