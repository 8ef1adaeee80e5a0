"""Pieces of work side by side on one CUDA device, where none of them alone would fill it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch


def run_side_by_side(device: torch.device, pieces: Sequence[Callable[[], None]]) -> None:
    """Run all pieces, on CUDA each but the last on a stream of its own.

    The current stream waits for all of them, and a recorded graph has them as branches. What a
    piece allocates belongs to its stream; what it is given must live until all are done.

    device: where the pieces compute.
    pieces: none needs what another one does; on other devices they run one after the other.
    """
    if device.type != "cuda":
        for piece in pieces:
            piece()
        return
    current = torch.cuda.current_stream(device)
    streams = [_side_stream(device, index) for index in range(len(pieces) - 1)]
    for stream, piece in zip([*streams, current], pieces, strict=False):
        if stream is not current:
            stream.wait_stream(current)
        with torch.cuda.stream(stream):
            piece()
    for stream in streams:
        current.wait_stream(stream)


@functools.cache
def _side_stream(device: torch.device, index: int) -> torch.cuda.Stream:
    """The same in every step, so that it finds the memory of the last one."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
