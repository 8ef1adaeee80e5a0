"""The only module that imports the native core; without it, the error says how to build it."""

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
    # GROUNDUP_VECTORS names an instruction set that this CPU lacks.
    raise ConfigError(str(error)) from None

__all__ = ["Encoder", "Splitter", "WordCounter", "as_array", "recover_merges", "vectors"]


def as_array(buffer: Buffer, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """View the memory of a native result as an array, without copying."""
    # numpy reads any buffer, although its types name only some; a memoryview takes 0.2 µs more.
    return np.frombuffer(buffer, dtype)  # type: ignore[call-overload,no-any-return]
