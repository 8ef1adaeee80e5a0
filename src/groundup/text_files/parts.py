"""A corpus cut into parts, each to be read by a process of its own: whole files, or a range of one.

A range is moved to where documents begin, by whoever reads it: neighbours find the same place, so
the parts hold every document once, in order, and nobody else has to look at the text.
"""

import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groundup.errors import ConfigError, DataError
from groundup.runtime import Engine, Progress
from groundup.text_files.inputs import STDIN, OnError, Source, classify
from groundup.text_files.opening import find_size
from groundup.text_files.remote import RemoteFile

_MOST_SOURCES = 4096


@dataclass(frozen=True)
class TextPart:
    """Whole sources, or of a single one what begins in a range of its bytes."""

    sources: tuple[Source, ...]
    num_bytes: int
    """How much of the files it is, where that is known."""
    span: tuple[int, int] | None = None
    size: int | None = None
    """Of the source that the range is of."""

    @property
    def is_end(self) -> bool:
        """Whether its sources are over with it."""
        return self.span is None or self.span[1] == self.size

    def check(self) -> None:
        """Raise DataError for a file that this machine does not have, or has in another form."""
        machine = socket.gethostname()
        fix = "put it where every machine sees it: a shared folder or object storage such as s3://"
        for source in self.sources:
            if isinstance(source, Path) and not source.exists():
                raise DataError(f"{source} does not exist on machine {machine}; {fix}")
        if self.span is not None:
            found = find_size(self.sources[0])
            if found != self.size:
                raise DataError(
                    f"{self.sources[0]} has {found} bytes on machine {machine} and {self.size} "
                    f"where the command runs; {fix}"
                )


def cut_into_parts(
    sources: Sequence[Source],
    part_bytes: int,
    *,
    separators: Sequence[str] | None,
    encoding: str | None = None,
    on_error: OnError = "stop",
) -> list[TextPart]:
    """The sources in parts of about `part_bytes`, in order.

    Plain text and JSON lines are cut inside of a file, others are not: packed files, tables and
    pages are read from front to back. Neither is anything where files may be skipped, since what
    follows the place of an error would be skipped too.

    sources: as `expand_inputs` gives them.
    part_bytes: about how much of the files a part has.
    separators: texts between documents of plain text; None where it may be cut anywhere.
    encoding: of files that are not UTF-8, if any.
    on_error: "skip" passes over files that cannot be looked at.
    """
    may_cut = encoding is None and on_error == "stop"
    may_cut_text = may_cut and (separators is None or not _may_overlap(separators))
    parts: list[TextPart] = []
    waiting: list[Source] = []
    num_bytes = 0

    def end_part() -> None:
        nonlocal waiting, num_bytes
        if waiting:
            parts.append(TextPart(tuple(waiting), num_bytes))
        waiting, num_bytes = [], 0

    for source in sources:
        size = _known_size(source, on_error)
        kind, compression = classify(source)
        is_cut = may_cut_text if kind == "text" else may_cut and kind == "json_lines"
        # Not every server of pages gives a range of one.
        is_cut = is_cut and compression is None and not str(source).startswith("http")
        if size is not None and size > part_bytes and is_cut:
            end_part()
            for begin in range(0, size, part_bytes):
                end = min(begin + part_bytes, size)
                parts.append(TextPart((source,), end - begin, (begin, end), size))
            continue
        if num_bytes + (size or 0) > part_bytes or len(waiting) == _MOST_SOURCES:
            end_part()
        waiting.append(source)
        num_bytes += size or 0
    end_part()
    return parts


def do_parts(
    engine: Engine,
    function: Callable[[TextPart], Iterator[Any]],
    parts: Sequence[TextPart],
    progress: Progress | None,
) -> Iterator[Any]:
    """What a function yields for all parts, in order.

    engine: calls it.
    function, parts: what is called, and with what.
    progress: called with the bytes of the parts that are done, and of all.
    """
    done, total = 0, sum(part.num_bytes for part in parts)
    for part, results in zip(parts, engine(function, parts), strict=True):
        yield from results
        done += part.num_bytes
        if progress is not None:
            progress(done, total)


def _known_size(source: Source, on_error: OnError) -> int | None:
    if source == STDIN:
        raise ConfigError("standard input cannot be read by --engine ray; name files instead")
    size = find_size(source, on_error)
    if size is None and not isinstance(source, RemoteFile):
        raise DataError(f"{source} is not a regular file, which --engine ray needs")
    return size


def _may_overlap(separators: Sequence[str]) -> bool:
    """Whether the end of a separator may be the beginning of one, or one be inside another.

    Then which of them are in a text depends on where one begins to look.
    """
    texts = [separator.encode() for separator in separators]
    for one in texts:
        for other in texts:
            if one is not other and one in other:
                return True
            shorter = min(len(one), len(other))
            if any(one[-size:] == other[:size] for size in range(1, shorter)):
                return True
    return False
