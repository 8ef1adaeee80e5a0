"""The one door to the native core: says how to build it where it is missing."""

from __future__ import annotations

try:
    from groundup._native import Encoder, WordCounter, find_documents, recover_merges, split
except ImportError as error:  # pragma: no cover - needs an installation without the module
    raise ImportError(
        "groundup's native core is not built. It needs a C++17 compiler: run `make setup` in a "
        f"checkout, or `pip install .` ({error})"
    ) from error

__all__ = ["Encoder", "WordCounter", "find_documents", "recover_merges", "split"]
