"""Files to shards to batches: reading corpora, writing the built-in one, fetching public ones.

`get_batch` is found on first use, so that what only handles text costs no torch import.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from groundup.data.batches.loader import get_batch

__all__ = ["get_batch"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'groundup.data' has no attribute {name!r}")
    from groundup.data.batches import loader

    value = getattr(loader, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
