"""The exception hierarchy: every user error is a GroundupError.

The message is a single paragraph: what is wrong (with the value), where, and how to fix it. The
command line prints it and chooses the exit status.
"""

import difflib
from collections.abc import Iterable
from typing import Any

NATIVE_MISSING = (
    "groundup's native core is not built: run `make install` in a checkout, or `pip install .`; it "
    "needs a C++17 compiler"
)


# Names of the same settings in Hugging Face, PyTorch and nanoGPT.
_NAMES_ELSEWHERE = {
    "block-size": "context-length",
    "gradient-accumulation-steps": "micro-batch-size",
    "hidden-size": "d-model",
    "intermediate-size": "d-ff",
    "lr": "learning-rate",
    "max-iters": "num-steps",
    "max-position-embeddings": "context-length",
    "max-steps": "num-steps",
    "n-embd": "d-model",
    "num-attention-heads": "num-heads",
    "num-key-value-heads": "num-kv-heads",
    "num-train-epochs": "epochs",
    "per-device-train-batch-size": "micro-batch-size",
}


class GroundupError(Exception):
    """Base class of all errors that groundup raises on purpose.

    A message that quotes too much of an untrusted file is truncated in the middle.
    """

    def __init__(self, message: str) -> None:
        text = " ".join(line.strip() for line in message.splitlines()).strip()
        super().__init__(text if len(text) <= 3_000 else f"{text[:2_000]} … {text[-500:]}")


class ConfigError(GroundupError):
    """An invalid setting, flag or settings file."""


class TokenizerError(GroundupError):
    """An invalid or inconsistent vocabulary, merge list, pattern, special token or id."""


class DataError(GroundupError):
    """Text, records or shards that are missing, damaged or of the wrong type."""


class CheckpointError(GroundupError):
    """A checkpoint that is incomplete, damaged or does not match."""


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
    """Whether an error is Python's MemoryError, or torch's out-of-memory error on any device."""
    words = ("out of memory", "not enough memory", "can't allocate memory")
    return isinstance(error, MemoryError) or any(one in str(error).lower() for one in words)


def check_argument_names(given: Iterable[str], known: Iterable[str]) -> None:
    """Raise TypeError for an unknown keyword argument, as Python does, with the closest name."""
    for name in given:
        if name not in known:
            raise TypeError(f"unknown argument {name}: {did_you_mean(name, known)}")


def nearest_name(name: str, known_names: Iterable[str]) -> str | None:
    """Return the known name that means the same or is most similar; None if none is close."""
    by_folded = {known.casefold().replace("_", "-"): known for known in known_names}
    folded = name.casefold().replace("_", "-")
    last = folded.lstrip("-").rpartition(".")[2]
    wanted = _NAMES_ELSEWHERE.get(last, last)
    if found := [one for one in by_folded if one.lstrip("-").rpartition(".")[2] == wanted]:
        return by_folded[found[0]]
    close = difflib.get_close_matches(folded, by_folded, n=1, cutoff=0.6)
    return by_folded[close[0]] if close else None


def did_you_mean(name: str, known_names: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: the closest known name, or all of them."""
    known_names = list(known_names)
    nearest = nearest_name(name, known_names)
    if nearest is not None:
        return f"did you mean {nearest}?"
    return f"choose from {', '.join(known_names)}" if known_names else "there are none"
