"""What counts as text worth keeping: the settings of cleaning and the filters they make.

A filter says of each document a number and whether that is out of bounds; counts and duplicates are
the native core's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from groundup.config import Settings

NUM_SHINGLE_WORDS = 5
"""Documents are compared by their runs of so many words."""
SIGNATURE_SIZE = 128
COUNTS = (
    "characters spaces letters script_letters symbols line_bytes repeated_line_bytes shingles "
    "repeated_shingles"
).split()
MEASURED = np.dtype(
    [(name, np.int64) for name in COUNTS]
    + [("hash", np.uint64), ("signature", np.uint32, (SIGNATURE_SIZE,))]
)
"""A measured document, as the native core lays it out."""

Measured = npt.NDArray[np.void]
Script = Literal[
    "latin", "greek", "cyrillic", "hebrew", "arabic", "devanagari", "thai", "hangul", "cjk"
]
_CODE_POINTS: dict[str, list[tuple[int, int]]] = {
    "latin": [(0x41, 0x24F), (0x1E00, 0x1EFF), (0xFF21, 0xFF5A)],
    "greek": [(0x370, 0x3FF), (0x1F00, 0x1FFF)],
    "cyrillic": [(0x400, 0x52F), (0x1C80, 0x1C8F), (0x2DE0, 0x2DFF), (0xA640, 0xA69F)],
    "hebrew": [(0x590, 0x5FF), (0xFB1D, 0xFB4F)],
    "arabic": [(0x600, 0x6FF), (0x750, 0x77F), (0x8A0, 0x8FF), (0xFB50, 0xFEFC)],
    "devanagari": [(0x900, 0x97F), (0xA8E0, 0xA8FF)],
    "thai": [(0xE00, 0xE7F)],
    "hangul": [(0x1100, 0x11FF), (0x3130, 0x318F), (0xAC00, 0xD7FF)],
    "cjk": [(0x2E80, 0x312F), (0x31A0, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF)],
}


Fraction = Annotated[float, Field(ge=0, le=1)]


class CleanSettings(Settings):
    """What is left out; see each setting."""

    near_duplicates: Fraction = 0.8
    """Leave out documents that share this fraction of their runs of 5 words (Jaccard similarity)
    with an earlier one; 0 leaves out only those that are the same."""

    min_characters: int = Field(50, ge=0)
    """Leave out shorter documents."""

    max_characters: int | None = Field(None, ge=0)
    """Leave out longer documents; not below min_characters."""

    max_symbols: Fraction = 0.4
    """Leave out documents with a greater fraction of characters, spaces aside, that are neither
    letters nor digits."""

    max_repeated_lines: Fraction = 0.5
    """Leave out documents with a greater fraction of their text in lines that came before in it."""

    max_repeated_words: Fraction = 0.5
    """Leave out documents with a greater fraction of runs of 5 words that came before in them."""

    script: Script | None = None
    """Leave out documents of other scripts, as `min_script` says."""

    min_script: Fraction = 0.5
    """With `script`: leave out documents with a smaller fraction of letters of that script."""

    @model_validator(mode="after")
    def _check_bounds(self) -> "CleanSettings":
        if self.max_characters is not None and self.max_characters < self.min_characters:
            raise ValueError(
                f"max_characters {self.max_characters} is less than min_characters "
                f"{self.min_characters}, so nothing would be left"
            )
        return self

    @property
    def num_bands(self) -> int:
        """Bands of the signature: as few as find nine in ten of those just at the threshold."""
        if not self.near_duplicates:
            return 0
        widths = (16, 8, 4, 2, 1)
        fitting = (SIGNATURE_SIZE // width for width in widths)
        return next((n for n in fitting if self.recall(self.near_duplicates, n) >= 0.9), 128)

    def recall(self, similarity: float, num_bands: int) -> float:
        """The probability that two documents share a band.

        similarity: of the two.
        num_bands: that the signature is cut into.
        """
        if not num_bands:
            return 0.0
        return 1 - (1 - similarity ** (SIGNATURE_SIZE // num_bands)) ** num_bands

    def code_points(self) -> npt.NDArray[np.int64]:
        """The ranges of the script's letters."""
        ranges = _CODE_POINTS[self.script] if self.script else []
        return np.array(ranges, np.int64).reshape(-1, 2)


@dataclass(frozen=True)
class Filter:
    """One reason to leave a document out."""

    name: str
    rule: str
    """When a document is left out, in words."""
    value: Callable[[Measured], npt.NDArray[Any]]
    is_bad: Callable[[npt.NDArray[Any]], npt.NDArray[np.bool_]]


def filters_of(settings: CleanSettings) -> list[Filter]:
    """The filters that settings ask for, in the order in which they judge."""
    least, most = settings.min_characters, settings.max_characters
    found = [
        Filter(
            "short",
            f"fewer than {least:,} characters",
            lambda rows: rows["characters"],
            lambda values: values < least,
        )
    ]
    if most is not None:
        found.append(
            Filter(
                "long",
                f"more than {most:,} characters",
                lambda rows: rows["characters"],
                lambda values: values > most,
            )
        )
    for name, what, limit, count, total in (
        ("symbols", "of characters are symbols", settings.max_symbols, "symbols", None),
        (
            "repeated lines",
            "of the text is in lines that came before",
            settings.max_repeated_lines,
            "repeated_line_bytes",
            "line_bytes",
        ),
        (
            "repeated words",
            f"of runs of {NUM_SHINGLE_WORDS} words came before",
            settings.max_repeated_words,
            "repeated_shingles",
            "shingles",
        ),
    ):
        rule = f"more than {limit:.0%} {what}"
        found.append(Filter(name, rule, _fraction_of(count, total), _above(limit)))
    if settings.script is not None:
        rule = f"less than {settings.min_script:.0%} of letters are {settings.script}"
        fraction = _fraction_of("script_letters", "letters")
        found.append(Filter("script", rule, fraction, _below(settings.min_script)))
    return found


def _fraction_of(count: str, total: str | None) -> Callable[[Measured], npt.NDArray[np.float64]]:
    def fraction(rows: Measured) -> npt.NDArray[np.float64]:
        whole = rows["characters"] - rows["spaces"] if total is None else rows[total]
        result: npt.NDArray[np.float64] = rows[count] / np.maximum(whole, 1)
        return result

    return fraction


def _above(limit: float) -> Callable[[npt.NDArray[Any]], npt.NDArray[np.bool_]]:
    return lambda values: values > limit


def _below(limit: float) -> Callable[[npt.NDArray[Any]], npt.NDArray[np.bool_]]:
    return lambda values: values < limit
