"""Launches that begin before the one before them has ended (programmatic dependent launch).

A kernel that is launched early reads what the launch before it does not write and calls `wait`,
which returns when all launches before it have ended. Everything else it reads or writes comes after
that. Then it calls `begin`, which lets the next launch begin: so of the launches before that one
all have ended but this. GPUs since Hopper can do so.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl

# No more of a weight, of keys or of values is fetched ahead of the launch that reads it: the cache
# is not only for it.
MAX_SOON_BYTES = 8 << 20


def options(**chosen: Any) -> dict[str, Any]:
    """Arguments of a launch: whether it is early, and what was chosen."""
    early = can_be_early()
    return {**chosen, "EARLY": early, **({"launch_pdl": True} if early else {})}


@functools.cache
def can_be_early() -> bool:
    """Whether the GPU and Triton know early launches."""
    knows = hasattr(getattr(tl.extra, "cuda", None), "gdc_wait")
    return knows and torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)


@functools.cache
def shared_memory_bytes() -> int:
    """How much shared memory a program can have: 227 KB on an H100, 99 on most small GPUs."""
    least = 99 << 10
    if not torch.cuda.is_available():
        return least
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return getattr(properties, "shared_memory_per_block_optin", least)


@triton.jit
def begin(EARLY: tl.constexpr):
    """Let the next launch begin once all programs of this one have called it."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait(EARLY: tl.constexpr):
    """Wait until the launches before this one have ended."""
    if EARLY:
        tl.extra.cuda.gdc_wait()


@triton.jit
def prefetch(soon, num_bytes, EARLY: tl.constexpr):
    """Let what a later launch reads be on its way to the cache; all programs share the work."""
    num_programs = tl.num_programs(0) * tl.num_programs(1)
    program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    prefetch_pieces(soon, program + num_programs * tl.arange(0, 128), num_bytes, EARLY)


@triton.jit
def prefetch_pieces(soon, piece, num_bytes, EARLY: tl.constexpr):
    """Those pieces of 1,024 bytes with these numbers that are whole."""
    if EARLY:
        start = piece.to(tl.int64) * 1024
        tl.inline_asm_elementwise(
            """{
            .reg .pred p;
            setp.ne.u32 p, $2, 0;
            @p cp.async.bulk.prefetch.L2.global [$1], 1024;
            mov.u32 $0, 0;
            }""",
            "=r,l,r",
            [soon.to(tl.int64) + start, (start + 1024 <= num_bytes).to(tl.int32)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
