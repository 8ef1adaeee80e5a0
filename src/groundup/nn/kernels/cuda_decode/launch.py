"""Launches that begin before the previous one has ended (programmatic dependent launch).

A kernel launched early first reads data that no unfinished launch writes. Then it calls `wait`,
which returns when all previous launches have ended and lets the next one begin. All other reads and
writes come after that. Supported by GPUs from Hopper on.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

# Limit on the bytes of a weight, of keys or of values prefetched for a later launch: the L2 cache
# has other uses.
MAX_SOON_BYTES = 8 << 20


def options(**chosen: Any) -> dict[str, Any]:
    """Return launch arguments: `chosen`, and an early launch if the GPU supports it."""
    early = torch.cuda.get_device_capability() >= (9, 0)
    return {**chosen, "EARLY": early, **({"launch_pdl": True} if early else {})}


@triton.jit
def wait(EARLY: tl.constexpr, AT_ONCE: tl.constexpr = False):
    """Wait until the previous launches have ended. Let the next one begin once all programs of this
    launch have ended the wait, or reached it with AT_ONCE."""
    if EARLY and AT_ONCE:
        tl.extra.cuda.gdc_launch_dependents()
    if EARLY:
        tl.extra.cuda.gdc_wait()
    if EARLY and not AT_ONCE:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def prefetch(soon, piece, num_bytes, EARLY: tl.constexpr):
    """Prefetch the pieces of 1,024 bytes with these indices, if they are complete, to the L2 cache,
    for a later launch."""
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
