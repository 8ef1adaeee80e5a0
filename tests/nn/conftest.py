"""Layer tests are deterministic and can compare outputs and gradients of two implementations."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

Agree = Callable[..., None]


@pytest.fixture(autouse=True)
def always_steady(steady: None) -> None:
    pass


@pytest.fixture(scope="session")
def agree() -> Agree:
    """`agree(ours, theirs, inputs)` asserts equal outputs and equal gradients of `inputs`.

    With `relative`, the norm of a difference may be that fraction of the norm of `theirs`.
    """

    def check(
        ours: Tensor,
        theirs: Tensor,
        inputs: Sequence[Tensor],
        rtol: float | None = None,
        atol: float | None = None,
        relative: float | None = None,
    ) -> None:
        assert ours.shape == theirs.shape
        d_out = torch.randn_like(ours)
        gradients = torch.autograd.grad(ours, inputs, d_out)
        expected = torch.autograd.grad(theirs, inputs, d_out.to(theirs.dtype))
        pairs = zip((ours, *gradients), (theirs, *expected), strict=True)
        for one, other in pairs:
            if relative is not None:
                difference = one.double() - other.double()
                assert difference.norm() <= relative * other.double().norm().clamp(min=0.1)
            else:
                torch.testing.assert_close(one, other.to(one.dtype), rtol=rtol, atol=atol)

    return check
