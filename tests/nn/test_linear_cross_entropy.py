"""The chunked output layer and loss equal the formula and never materialize all logits."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from groundup.errors import ConfigError, DataError
from groundup.nn.linear_cross_entropy import linear_cross_entropy, linear_cross_entropy_reference

D_MODEL, VOCAB = 6, 71
CPU = torch.device("cpu")


def inputs(
    shape: tuple[int, ...] = (20,), dtype: torch.dtype = torch.float32, device: torch.device = CPU
) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    hidden = torch.randn(*shape, D_MODEL, dtype=torch.float64) * 2
    weight = torch.randn(VOCAB, D_MODEL, dtype=torch.float64)
    targets = torch.randint(0, VOCAB, shape, device=device)
    return *(one.to(device, dtype).requires_grad_() for one in (hidden, weight)), targets  # type: ignore[return-value]


def value_and_gradients(
    loss: Any, hidden: Tensor, weight: Tensor, targets: Tensor, **options: Any
) -> list[Tensor]:
    value = loss(hidden, weight, targets, **options)
    return [value.detach(), *torch.autograd.grad(value, [hidden, weight])]


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str
)
@pytest.mark.parametrize("with_later", [False, True])
@pytest.mark.parametrize("z_loss", [0.0, 0.3])
@pytest.mark.parametrize(
    ("shape", "chunk_rows", "reduction"),
    [((20,), 7, "mean"), ((20,), 100, "sum"), ((4, 5), 1, "mean"), ((2, 3, 7), None, "sum")],
)
def test_chunking_does_not_change_loss_and_gradients(
    shape: tuple[int, ...],
    chunk_rows: int | None,
    reduction: str,
    z_loss: float,
    with_later: bool,
    dtype: torch.dtype,
    device: torch.device,
    agree: Any,
) -> None:
    """A later target adds to the gradient but not to the value; -1 means none."""
    hidden, weight, targets = inputs(shape, dtype, device)
    later = (targets.roll(-1) - 1, torch.tensor(0.4, device=device)) if with_later else None
    options: dict[str, Any] = {"reduction": reduction, "z_loss": z_loss, "mtp": later}
    ours = linear_cross_entropy(hidden, weight, targets, chunk_rows=chunk_rows, **options)
    wide = hidden.double(), weight.double()
    theirs = linear_cross_entropy_reference(*wide, targets, **options)
    is_half = dtype in (torch.bfloat16, torch.float16)
    agree(ours, theirs, [hidden, weight], relative=0.02 if is_half else 1e-5)


def test_the_reference_with_a_later_target_equals_the_formula() -> None:
    hidden, weight, targets = inputs(dtype=torch.float64)
    later = targets.roll(-1).index_fill(0, torch.tensor([3, 19]), -1)
    loss = linear_cross_entropy_reference(
        hidden, weight, targets, mtp=(later, torch.tensor(0.4)), reduction="sum"
    )
    kept = later >= 0
    plain = torch.nn.functional.cross_entropy(hidden @ weight.T, targets, reduction="sum")
    added = torch.nn.functional.cross_entropy(hidden[kept] @ weight.T, later[kept], reduction="sum")
    torch.testing.assert_close(loss, plain)
    ours = torch.autograd.grad(loss, [hidden, weight])
    torch.testing.assert_close(ours, torch.autograd.grad(plain + 0.4 * added, [hidden, weight]))


def test_autocast_sets_the_matmul_dtype_but_not_that_of_gradients(
    device: torch.device,
) -> None:
    hidden, weight, targets = inputs((40,), device=device)
    exact = value_and_gradients(linear_cross_entropy_reference, hidden, weight, targets)
    with torch.autocast(device.type, torch.bfloat16):
        ours = value_and_gradients(linear_cross_entropy, hidden, weight, targets, chunk_rows=16)
        mixed = linear_cross_entropy(hidden.bfloat16(), weight, targets)
        wide = linear_cross_entropy(hidden.double(), weight.double(), targets)
    assert torch.equal(mixed, linear_cross_entropy(hidden.bfloat16(), weight.bfloat16(), targets))
    assert not torch.equal(ours[0], exact[0])
    torch.testing.assert_close(wide, exact[0].double(), rtol=1e-5, atol=1e-6)
    for one, other in zip(ours, exact, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=3e-2, atol=1e-2)


def test_logits_of_a_thousand_stay_finite(device: torch.device) -> None:
    hidden, weight, targets = inputs(device=device)
    loud = (hidden.detach() * 300).requires_grad_()
    largest = (loud @ weight.T).abs().max().item()
    assert largest > 1000
    ours = value_and_gradients(linear_cross_entropy, loud, weight, targets, chunk_rows=3)
    wide = (loud.detach().double().requires_grad_(), weight.detach().double().requires_grad_())
    theirs = value_and_gradients(linear_cross_entropy_reference, *wide, targets)
    # Each product rounds a logit by up to an ulp of the largest, and a probability changes by the
    # fraction that its logit moves.
    moved = (D_MODEL + 3) * torch.finfo(torch.float32).eps * largest
    for one, other in zip(ours, theirs, strict=True):
        tolerance = moved * other.abs().max().item()
        torch.testing.assert_close(one.double(), other, rtol=0, atol=tolerance)


@pytest.mark.parametrize("learning", ["hidden", "weight", "neither"])
def test_frozen_inputs_get_no_gradient(learning: str) -> None:
    hidden, weight, targets = inputs()
    expected = value_and_gradients(linear_cross_entropy, hidden, weight, targets)
    with torch.no_grad():
        silent = linear_cross_entropy(hidden, weight, targets)
    torch.testing.assert_close(silent, expected[0])
    hidden.requires_grad_(learning == "hidden")
    weight.requires_grad_(learning == "weight")
    loss = linear_cross_entropy(hidden, weight, targets)
    if learning == "neither":
        assert torch.equal(loss, silent) and not loss.requires_grad
        return
    loss.backward()
    for one, gradient in ((hidden, expected[1]), (weight, expected[2])):
        assert (one.grad is not None) == one.requires_grad
        assert one.grad is None or torch.equal(one.grad, gradient)


def test_backward_runs_twice_but_has_no_second_derivative() -> None:
    given = hidden, weight, targets = inputs()
    copies = [one.clone() for one in given]
    loss = linear_cross_entropy(hidden, weight, targets)
    first = torch.autograd.grad(loss, [hidden, weight], retain_graph=True)
    second = torch.autograd.grad(loss, [hidden, weight], retain_graph=True)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(given, copies, strict=True))
    with pytest.raises(ConfigError, match=r"no second derivative.*_reference"):
        torch.autograd.grad(loss, hidden, create_graph=True)


class LargestTensor(TorchDispatchMode):
    """Records the largest number of elements that any operation returned."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, tuple | list) else [result]:
            if isinstance(one, Tensor):
                self.largest = max(self.largest, one.numel())
        return result


@pytest.mark.parametrize("learning", [True, False])
def test_all_logits_are_never_materialized(learning: bool) -> None:
    hidden = torch.randn(64, 4, requires_grad=learning)
    weight = torch.randn(100, 4, requires_grad=learning)
    targets = torch.randint(0, 100, (64,))
    with LargestTensor() as seen:
        loss = linear_cross_entropy(hidden, weight, targets, z_loss=0.1, chunk_rows=8)
        if learning:
            loss.backward()
    assert seen.largest == 8 * 100


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_it_compiles_into_one_graph() -> None:
    hidden, weight, targets = inputs((40,))
    options = {"chunk_rows": 16, "mtp": (targets.roll(1), torch.tensor(0.3))}
    compiled = torch.compile(linear_cross_entropy, backend="aot_eager", fullgraph=True)
    ours = value_and_gradients(compiled, hidden, weight, targets, **options)
    theirs = value_and_gradients(linear_cross_entropy, hidden, weight, targets, **options)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("hidden", "weight", "targets"),
    [((3, 5), (7, 6), (3,)), ((3, 5), (5,), (3,)), ((3, 5), (7, 5), (4,)), ((0, 5), (7, 5), (0,))],
)
def test_mismatched_shapes_are_rejected(
    hidden: tuple[int, ...], weight: tuple[int, ...], targets: tuple[int, ...]
) -> None:
    with pytest.raises(DataError, match=r"shape|empty"):
        linear_cross_entropy(
            torch.zeros(hidden), torch.zeros(weight), torch.zeros(targets, dtype=torch.long)
        )
