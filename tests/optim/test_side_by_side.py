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
        given = torch.full_like(torch.empty(1 << 16, device=device), step)
        run_side_by_side(given.device, pieces_for(given, results))
        del given
        # Takes the memory that is free now.
        torch.full((1 << 16,), -1.0, device=device)
        for factor, result in enumerate(results, 1):
            assert (result == 51 * step * factor).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")
def test_a_recorded_graph_has_the_pieces() -> None:
    given = torch.ones(1 << 16, device="cuda")
    results = [torch.zeros_like(given) for _ in range(4)]
    run_side_by_side(given.device, pieces_for(given, results))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        doubled = given * 2
        run_side_by_side(given.device, pieces_for(doubled, results))
        total = sum(results, torch.zeros_like(given))
    for value in (1.0, 3.0):
        given.fill_(value)
        graph.replay()
        assert (total == 51 * 2 * value * (1 + 2 + 3 + 4)).all()
