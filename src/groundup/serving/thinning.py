"""Which lines of a long metrics file a plot needs: few, but every figure's highs and lows."""

from array import array
from collections.abc import Iterable, Mapping

import numpy

_POSITIONS = frozenset({"step", "tokens", "wall_seconds"})


def thin(
    columns: Mapping[str, "array[float]"],
    first: int,
    stop: int,
    limit: int | None,
    always: Iterable[int] = (),
) -> list[int]:
    """The line numbers to keep of `first` to `stop`: all, or about `limit` with the extremes.

    Each figure has its lines cut into spans of equal count, and the least and the greatest of
    every span are kept, so that a spike of one line is still seen. Half of the places are the
    loss's, which is what people look at. The lines of `always` are kept as well.
    """
    if limit is None or stop - first <= limit:
        return list(range(first, stop))
    figures = [name for name in columns if name not in _POSITIONS]
    kept = {first, stop - 1, *(index for index in always if first <= index < stop)}
    for name in figures:
        share = limit / 2 if name == "loss" else limit / 2 / max(1, len(figures) - 1)
        values = numpy.array(columns[name][first:stop])
        kept.update(first + index for index in _extremes(values, max(1, int(share / 2))))
    return sorted(kept)


def _extremes(
    values: "numpy.ndarray[tuple[int], numpy.dtype[numpy.float64]]", num_spans: int
) -> list[int]:
    present = numpy.flatnonzero(numpy.isfinite(values))
    if len(present) <= 2 * num_spans:
        return [int(index) for index in present]
    kept = [int(present[0]), int(present[-1])]
    for span in numpy.array_split(present, num_spans):
        kept.append(int(span[values[span].argmin()]))
        kept.append(int(span[values[span].argmax()]))
    return kept
