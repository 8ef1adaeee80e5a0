"""The output layer and its loss in chunks: equal to the formula, and never all logits at once."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from groundup.errors import ConfigError, DataError
from groundup.nn.linear_cross_entropy import (
    linear_cross_entropy,
    linear_cross_entropy_reference,
)

D_MODEL, VOCAB = 6, 13


def inputs(
    shape: tuple[int, ...] = (5, 4),
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    hidden = torch.randn(*shape, D_MODEL, dtype=dtype, device=device, requires_grad=True)
    weight = torch.randn(VOCAB, D_MODEL, dtype=dtype, device=device, requires_grad=True)
    return hidden, weight, torch.randint(0, VOCAB, shape, device=device)


def value_and_gradients(
    function: Any, hidden: Tensor, weight: Tensor, targets: Tensor, **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    loss = function(hidden, weight, targets, **options)
    # A factor, because backward must honour what comes from above.
    return loss, *torch.autograd.grad(loss * 3, [hidden, weight])


def assert_equal_to_reference(
    hidden: Tensor, weight: Tensor, targets: Tensor, chunk_rows: int | None, **options: Any
) -> None:
    ours = value_and_gradients(
        linear_cross_entropy, hidden, weight, targets, chunk_rows=chunk_rows, **options
    )
    theirs = value_and_gradients(linear_cross_entropy_reference, hidden, weight, targets, **options)
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("shape", "chunk_rows"),
    [((5, 4), 1), ((5, 4), 3), ((5, 4), 20), ((5, 4), None), ((), 2), ((11,), 2), ((2, 1, 4), 99)],
)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_chunks_give_the_loss_and_gradients_of_the_whole(
    dtype: torch.dtype,
    shape: tuple[int, ...],
    chunk_rows: int | None,
    reduction: str,
    device: torch.device,
) -> None:
    assert_equal_to_reference(*inputs(shape, dtype, device), chunk_rows, reduction=reduction)


@pytest.mark.parametrize("z_loss", [0.0, 1e-4, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_z_loss_is_that_of_the_formula(
    z_loss: float, dtype: torch.dtype, device: torch.device
) -> None:
    assert_equal_to_reference(*inputs(dtype=dtype, device=device), 7, z_loss=z_loss)


def test_default_chunks_cover_more_rows_than_one_holds() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(700, 3, requires_grad=True)
    weight = torch.randn(5000, 3, requires_grad=True)
    assert_equal_to_reference(hidden, weight, torch.randint(0, 5000, (700,)), None)


def test_strided_hidden_and_narrow_targets() -> None:
    hidden, weight, targets = inputs((4, 5))
    turned = hidden.detach().transpose(0, 1).requires_grad_()
    assert_equal_to_reference(turned, weight, targets.T.to(torch.int32), 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_exact_as_its_type(dtype: torch.dtype, device: torch.device) -> None:
    hidden, weight, targets = inputs((40,), dtype, device)
    options = {"z_loss": 1e-2}
    ours = value_and_gradients(
        linear_cross_entropy, hidden, weight, targets, chunk_rows=16, **options
    )
    wide = [one.detach().double().requires_grad_() for one in (hidden, weight)]
    theirs = value_and_gradients(
        linear_cross_entropy_reference, wide[0], wide[1], targets, **options
    )
    assert [one.dtype for one in ours] == [torch.float32, dtype, dtype]
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=4e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_later_target_adds_its_gradient_and_nothing_to_the_value(
    dtype: torch.dtype, device: torch.device
) -> None:
    hidden, weight, targets = inputs((40,), dtype, device)
    options = {"z_loss": 1e-2}
    later = targets.roll(-1).index_fill(0, torch.tensor([3, 39], device=device), -1)
    factor = torch.tensor(0.4, device=device)
    ours = value_and_gradients(
        linear_cross_entropy, hidden, weight, targets, later=(later, factor), chunk_rows=16,
        **options,
    )  # fmt: skip
    wide = [one.detach().double().requires_grad_() for one in (hidden, weight)]
    theirs = value_and_gradients(
        linear_cross_entropy_reference, wide[0], wide[1], targets, **options
    )
    kept = later >= 0
    added = value_and_gradients(
        lambda hidden, *rest, **options: linear_cross_entropy_reference(
            hidden[kept], *rest, **options
        ),
        wide[0],
        wide[1],
        later[kept],
        reduction="sum",
    )
    expected = [theirs[0], *(a + 0.4 / 40 * b for a, b in zip(theirs[1:], added[1:], strict=True))]
    rounding: dict[str, Any] = {}
    if dtype == torch.bfloat16:
        rounding = {"rtol": 4e-2, "atol": 2e-2}
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one.double(), other.double(), **rounding)


def test_autocast_multiplies_in_its_type_and_returns_gradients_in_theirs(
    device: torch.device,
) -> None:
    hidden, weight, targets = inputs((40,), device=device)
    exact = value_and_gradients(linear_cross_entropy_reference, hidden, weight, targets)
    with torch.autocast(device.type, torch.bfloat16):
        ours = value_and_gradients(linear_cross_entropy, hidden, weight, targets, chunk_rows=16)
        mixed = linear_cross_entropy(hidden.bfloat16(), weight, targets)
    halves = linear_cross_entropy(hidden.bfloat16(), weight.bfloat16(), targets)
    assert torch.equal(mixed, halves)
    assert not torch.equal(ours[0], exact[0])
    for one, other in zip(ours, exact, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=3e-2, atol=1e-2)


def test_autocast_leaves_float64_alone() -> None:
    hidden, weight, targets = inputs(dtype=torch.float64)
    plain = linear_cross_entropy(hidden, weight, targets)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(linear_cross_entropy(hidden, weight, targets), plain)


def test_logits_of_a_thousand_stay_finite(device: torch.device) -> None:
    hidden, weight, targets = inputs(device=device)
    hidden, weight = hidden.detach() * 300, weight.detach()
    largest = (hidden @ weight.T).abs().max().item()
    assert largest > 1000
    narrow, wide = (
        [one.to(dtype, copy=True).requires_grad_() for one in (hidden, weight)]
        for dtype in (torch.float32, torch.float64)
    )
    options: dict[str, Any] = {}
    ours = value_and_gradients(
        linear_cross_entropy, narrow[0], narrow[1], targets, chunk_rows=3, **options
    )
    theirs = value_and_gradients(
        linear_cross_entropy_reference, wide[0], wide[1], targets, **options
    )
    # The sum of d_model products, the cap's division, tanh and product: each rounds a logit by up
    # to an ulp of the largest, and a probability changes by the fraction that its logit moves.
    moved = (D_MODEL + 3) * torch.finfo(torch.float32).eps * largest
    for one, other in zip(ours, theirs, strict=True):
        tolerance = moved * other.abs().max().item()
        torch.testing.assert_close(one.double(), other, rtol=0, atol=tolerance)


@pytest.mark.parametrize("learning", ["hidden", "weight"])
def test_one_side_alone_may_learn(learning: str) -> None:
    hidden, weight, targets = inputs()
    _, d_hidden, d_weight = value_and_gradients(linear_cross_entropy, hidden, weight, targets)
    hidden.requires_grad_(learning == "hidden")
    weight.requires_grad_(learning == "weight")
    (linear_cross_entropy(hidden, weight, targets) * 3).backward()
    if learning == "hidden":
        assert weight.grad is None and hidden.grad is not None
        assert torch.equal(hidden.grad, d_hidden)
    else:
        assert hidden.grad is None and weight.grad is not None
        assert torch.equal(weight.grad, d_weight)


def test_without_gradients_the_value_is_the_same() -> None:
    hidden, weight, targets = inputs()
    options: dict[str, Any] = {"z_loss": 0.1, "chunk_rows": 7}
    with torch.no_grad():
        silent = linear_cross_entropy(hidden, weight, targets, **options)
    assert not silent.requires_grad
    torch.testing.assert_close(silent, linear_cross_entropy(hidden, weight, targets, **options))
    frozen = linear_cross_entropy(hidden.detach(), weight.detach(), targets, **options)
    assert torch.equal(frozen, silent)


def test_backward_may_be_asked_twice_and_leaves_inputs_as_they_are() -> None:
    given = hidden, weight, targets = inputs()
    copies = [one.clone() for one in given]
    loss = linear_cross_entropy(hidden, weight, targets)
    first = torch.autograd.grad(loss, [hidden, weight], retain_graph=True)
    second = torch.autograd.grad(loss, [hidden, weight])
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(given, copies, strict=True))


def test_a_second_derivative_is_refused() -> None:
    hidden, weight, targets = inputs()
    loss = linear_cross_entropy(hidden, weight, targets)
    with pytest.raises(ConfigError, match=r"no second derivative.*_reference"):
        torch.autograd.grad(loss, hidden, create_graph=True)


class LargestTensor(TorchDispatchMode):
    """Remembers the most elements that any operation returned."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, tuple | list) else [result]:
            if isinstance(one, Tensor):
                self.largest = max(self.largest, one.numel())
        return result


@pytest.mark.parametrize("learning", [True, False])
def test_all_logits_never_exist(learning: bool) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(64, 4, requires_grad=learning)
    weight = torch.randn(100, 4, requires_grad=learning)
    with LargestTensor() as seen:
        loss = linear_cross_entropy(
            hidden, weight, torch.randint(0, 100, (64,)), z_loss=0.1, chunk_rows=8
        )
        if learning:
            loss.backward()
    assert seen.largest == 8 * 100


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_it_compiles_into_one_graph() -> None:
    hidden, weight, targets = inputs((40,))

    def loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        return linear_cross_entropy(hidden, weight, targets, chunk_rows=16)

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    ours = value_and_gradients(compiled, hidden, weight, targets)
    theirs = value_and_gradients(loss, hidden, weight, targets)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("hidden", "weight", "targets", "complaint"),
    [
        ((3, 5), (7, 6), (3,), r"\(3, 5\).*\(7, 6\)"),
        ((3, 5), (5,), (3,), r"\(5,\)"),
        ((3, 5), (7, 5), (4,), r"\(4,\).*shape \(3,\)"),
        ((0, 5), (7, 5), (0,), "targets are empty"),
    ],
)
def test_shapes_that_do_not_fit_are_named(
    hidden: tuple[int, ...], weight: tuple[int, ...], targets: tuple[int, ...], complaint: str
) -> None:
    with pytest.raises(DataError, match=complaint):
        linear_cross_entropy(
            torch.zeros(hidden), torch.zeros(weight), torch.zeros(targets, dtype=torch.long)
        )
