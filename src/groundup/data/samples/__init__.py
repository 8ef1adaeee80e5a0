"""The built-in corpus, which needs no download: short stories in any amount, and short dialogues to
fine-tune a model of the stories.

`grammar` generates them from the files in `stories` and `dialogues`.
"""

import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from groundup.data.samples.grammar import Grammar
from groundup.disk import open_stream
from groundup.files import atomic_path
from groundup.text_files import END_OF_TEXT

if TYPE_CHECKING:
    from groundup.runtime import Progress

STORIES = Path(__file__).with_name("stories")
DIALOGUES = Path(__file__).with_name("dialogues")


class SampleCorpus(NamedTuple):
    """The number of stories or dialogues that were written, and their size."""

    num_texts: int
    num_bytes: int


def write_stories(num_bytes: int, seed: int = 0) -> Iterator[str]:
    """Yield stories until they and their separator lines have at least `num_bytes` in UTF-8.

    A seed gives the same stories on every machine and Python version, and a larger corpus begins
    with the stories of a smaller one.
    """
    written = 0
    for expansion in _read_grammar(STORIES).expansions(seed):
        if written >= num_bytes:
            return
        story = expansion.expand("story")
        yield story
        written += len(f"{story}\n{END_OF_TEXT}\n".encode())


def write_sample_corpus(
    path: str | os.PathLike[str],
    megabytes: float,
    seed: int = 0,
    progress: "Progress | None" = None,
    kind: Literal["stories", "dialogues"] = "stories",
) -> SampleCorpus:
    """Write whole stories or dialogues until `path` has at least `megabytes` million bytes.

    `<|endoftext|>` follows each story on a line of its own. Dialogues are JSON lines with
    `messages`, for `groundup tune`.
    """
    total = round(megabytes * 1e6)
    if kind == "stories":
        texts = (f"{story}\n{END_OF_TEXT}\n" for story in write_stories(total, seed))
    else:
        lines = ({"messages": messages} for messages in write_dialogues(seed))
        texts = (json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    num_texts = num_bytes = 0
    with atomic_path(path) as temporary, open_stream(temporary) as file:
        while num_bytes < total and (text := next(texts, None)):
            num_bytes += file.write(text.encode())
            num_texts += 1
            if progress is not None:
                progress(min(num_bytes, total), total)
    return SampleCorpus(num_texts, num_bytes)


def write_dialogues(seed: int = 0) -> Iterator[list[dict[str, str]]]:
    """Yield endless dialogues, each a list of messages in which user and assistant take turns.

    A seed gives the same dialogues on every machine and Python version.
    """
    for expansion in _read_grammar(STORIES, DIALOGUES).expansions(seed):
        turns = expansion.expand("dialogue").split("\n\n")
        roles = ("user", "assistant") * len(turns)
        yield [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=False)]


_read_grammar = cache(Grammar.read)
