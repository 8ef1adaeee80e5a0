"""What a process that trains on a CPU holds besides tensors: the interpreter and its libraries."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from groundup.runtime import allocates_by_mimalloc

# On Linux with glibc, 2026-11; and what mimalloc reserves ahead.
_PROCESS_BYTES = 285_000_000
_MIMALLOC_BYTES = 35_000_000
# What torch's libraries for CUDA add to a process that trains on the CPU (torch 2.11, CUDA 13).
_CUDA_BUILD_BYTES = 305_000_000
# What oneDNN sets up for matmuls in bfloat16.
_BFLOAT16_PROCESS_BYTES = 80_000_000


def process_bytes(precision: str) -> int:
    """Before anything is trained with matmuls in `precision`."""
    held = _PROCESS_BYTES + (_CUDA_BUILD_BYTES if _torch_is_built_for_cuda() else 0)
    held += _MIMALLOC_BYTES if allocates_by_mimalloc() else 0
    return held + (_BFLOAT16_PROCESS_BYTES if precision == "bfloat16" else 0)


@cache
def _torch_is_built_for_cuda() -> bool:
    """Told by its files: the planner does not import torch."""
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        return False
    return any((Path(torch.origin).parent / "lib").glob("*torch_cuda*"))
