"""Launches that begin before the one before them has ended (programmatic dependent launch).

A kernel that is launched early reads what the launch before it does not write and calls `wait`,
which returns when all launches before it have ended and lets the next one begin. Everything else it
reads or writes comes after that. GPUs since Hopper can do so.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

# No more of a weight, of keys or of values is fetched ahead of the launch that reads it: the cache
# is not only for it.
MAX_SOON_BYTES = 8 << 20


def options(**chosen: Any) -> dict[str, Any]:
    """Arguments of a launch: whether it is early, and what was chosen."""
    early = torch.cuda.get_device_capability() >= (9, 0)
    return {**chosen, "EARLY": early, **({"launch_pdl": True} if early else {})}


@triton.jit
def wait(EARLY: tl.constexpr):
    """Wait until the launches before this one have ended; then let the next one begin, once all
    programs of this one are here."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def prefetch(soon, piece, num_bytes, EARLY: tl.constexpr):
    """Let those pieces of 1,024 bytes with these numbers that are whole be on their way to the
    cache, for a later launch to read."""
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
