"""The exception tree: every mistake a user can make is a GroundupError.

The text of one is a single paragraph: what is wrong (with the value), where, and what to do.
Printing it and choosing an exit status is the command line's work.
"""

import difflib
from collections.abc import Iterable
from typing import Any

NATIVE_MISSING = (
    "groundup's native core is not built: run `make install` in a checkout, or `pip install .`; it "
    "needs a C++17 compiler"
)


class GroundupError(Exception):
    """The base of all errors that groundup raises on purpose."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(line.strip() for line in message.splitlines()).strip())


class ConfigError(GroundupError):
    """A setting, flag or settings file that cannot be used."""


class TokenizerError(GroundupError):
    """A vocabulary, merge list, pattern, special token or id that does not hold together."""


class DataError(GroundupError):
    """Text, records or shards that are missing, damaged or of the wrong kind."""


class CheckpointError(GroundupError):
    """A checkpoint that is incomplete, damaged or belongs to something else."""


class MissingExtraError(GroundupError):
    """A feature whose optional packages are not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs packages that are not installed: "
            f"run pip install 'groundup[{extra}]' and try again"
        )
        self._given = feature, extra

    def __reduce__(self) -> Any:
        return type(self), self._given


def is_out_of_memory(error: Exception) -> bool:
    """Whether this is Python's MemoryError, or torch's RuntimeError on any device."""
    words = ("out of memory", "not enough memory", "can't allocate memory")
    return isinstance(error, MemoryError) or any(one in str(error).lower() for one in words)


def nearest_name(name: str, known_names: Iterable[str]) -> str | None:
    """The known name most like `name`, or None when nothing is close."""
    by_folded = {known.casefold().replace("_", "-"): known for known in known_names}
    close = difflib.get_close_matches(name.casefold().replace("_", "-"), by_folded, n=1, cutoff=0.6)
    return by_folded[close[0]] if close else None


def did_you_mean(name: str, known_names: Iterable[str]) -> str:
    """The tail of an error about an unknown name: the nearest one, or all there are."""
    known_names = list(known_names)
    nearest = nearest_name(name, known_names)
    if nearest is not None:
        return f"did you mean {nearest}?"
    return f"known are {', '.join(known_names)}" if known_names else "there are none"
