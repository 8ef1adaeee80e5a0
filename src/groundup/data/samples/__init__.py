"""The built-in corpus: little stories of any amount, so that everything works with no download.

What the stories say is in the files of `stories`, which `grammar` expands; here they are counted
and written to a file.
"""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from groundup.data.samples.grammar import Grammar, Telling
from groundup.errors import DataError
from groundup.files import atomic_path

if TYPE_CHECKING:
    from groundup.runtime import Progress

STORIES = Path(__file__).with_name("stories")
SEPARATOR = "<|endoftext|>"

_CHUNK_BYTES = 1 << 18


class SampleCorpus(NamedTuple):
    """What was written."""

    num_stories: int
    num_bytes: int


def write_stories(num_bytes: int, seed: int = 0) -> Iterator[str]:
    """Yield stories until they and their separator lines take at least `num_bytes` in UTF-8.

    The same seed gives the same stories on every machine and Python version, and a longer run
    begins with the stories of a shorter one.
    """
    overhead = len(_with_separator(""))
    written = 0
    for telling in story_tellings(seed):
        if written >= num_bytes:
            return
        story = telling.expand("story")
        yield story
        written += len(story.encode()) + overhead


def story_tellings(seed: int) -> Iterator[Telling]:
    """Stories to be told, without end: `expand("story")` tells one, whose people are then known."""
    return _story_grammar().tellings(seed)


def write_sample_corpus(
    path: str | os.PathLike[str],
    megabytes: float,
    seed: int = 0,
    progress: "Progress | None" = None,
) -> SampleCorpus:
    """Write whole stories to `path` until it holds `megabytes` million bytes or a little more.

    path: the file, which appears when it is complete; `<|endoftext|>` stands on a line of its own
        after each story.
    seed: the same seed gives the same stories.
    progress: called with the bytes written so far and their total.
    """
    if not 0 < megabytes < float("inf"):
        raise DataError(f"a corpus of {megabytes} megabytes cannot be written; ask for more than 0")
    total = round(megabytes * 1e6)
    num_stories = num_bytes = 0
    with atomic_path(path) as temporary, open(temporary, "wb", _CHUNK_BYTES) as file:
        for story in write_stories(total, seed):
            num_bytes += file.write(_with_separator(story).encode())
            num_stories += 1
            if progress is not None:
                progress(min(num_bytes, total), total)
    return SampleCorpus(num_stories, num_bytes)


@cache
def _story_grammar() -> Grammar:
    return Grammar.read(STORIES)


def _with_separator(story: str) -> str:
    return f"{story}\n{SEPARATOR}\n"
