"""Pieces of work on streams of their own: all done when the current stream goes on."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from groundup.optim.base import run_side_by_side


def pieces_for(given: Tensor, results: list[Tensor]) -> list[Callable[[], None]]:
    """Each takes a while, in memory of its own that it gives back, and fills its result."""

    def work(result: Tensor, factor: int) -> None:
        value = given.clone()
        for _ in range(50):
            value = value + given
        result.copy_(value * factor)

    return [partial(work, result, factor) for factor, result in enumerate(results, 1)]


@pytest.mark.parametrize("num_pieces", [0, 1, 4])
def test_every_piece_sees_what_was_before_and_is_seen_after(
    device: torch.device, num_pieces: int
) -> None:
    results = [torch.zeros(1 << 16, device=device) for _ in range(num_pieces)]
    for step in range(1, 4):
        given = torch.full((1 << 16,), float(step), device=device)
        run_side_by_side(given.device, pieces_for(given, results))
        del given
        # Takes the memory that is free now.
        torch.full((1 << 16,), -1.0, device=device)
        for factor, result in enumerate(results, 1):
            assert (result == 51 * step * factor).all()
