"""The one door to the native core: says how to build it where it is missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from groundup.errors import NATIVE_MISSING, ConfigError

try:
    from groundup._native import Buffer, Encoder, Splitter, WordCounter, recover_merges, vectors
except ImportError as error:  # pragma: no cover - needs an installation without the module
    raise ImportError(f"{NATIVE_MISSING} ({error})", name="groundup._native") from error

try:
    vectors()
except ValueError as error:
    # GROUNDUP_VECTORS names what this processor cannot run.
    raise ConfigError(str(error)) from None

__all__ = ["Encoder", "Splitter", "WordCounter", "as_array", "recover_merges", "vectors"]


def as_array(buffer: Buffer, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The memory of a native result as an array; nothing is copied."""
    return np.frombuffer(memoryview(buffer), dtype)
