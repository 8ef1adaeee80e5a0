"""`groundup data sample`: the built-in corpus of little stories, and dialogues about them."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from groundup.cli.terminal import progress_bar
from groundup.config import Seed, Settings
from groundup.errors import ConfigError

_MEGABYTES = {"stories": 20.0, "dialogues": 0.7}
_FILES = {"stories": "stories.txt", "dialogues": "dialogues.jsonl"}


class Arguments(Settings):
    """Write the built-in corpus of generated short stories or dialogues."""

    kind: Literal["stories", "dialogues"] = "stories"
    """Stories to train a model on, or questions and answers to tune it with (groundup tune)."""

    megabytes: float | None = Field(default=None, gt=0, le=10**6)
    """Amount of text in megabytes. Default: 20, or 0.7 for dialogues."""

    seed: Seed = 0
    """Random seed."""

    out: Path | None = None
    """Output file. Default: stories.txt or dialogues.jsonl."""


def run(arguments: Arguments) -> None:
    """Write the file and say what is in it."""
    from groundup.data.samples import write_sample_corpus
    from groundup.planner.quantities import show_bytes

    kind = arguments.kind
    out = arguments.out or Path(_FILES[kind])
    megabytes = arguments.megabytes or _MEGABYTES[kind]
    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder; name the text file to write")
    with progress_bar(f"writing {kind}") as progress:
        corpus = write_sample_corpus(out, megabytes, arguments.seed, progress, kind)
    print(f"wrote {out}: {corpus.num_texts:,} {kind}, {show_bytes(corpus.num_bytes)}")
