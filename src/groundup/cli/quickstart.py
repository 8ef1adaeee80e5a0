"""`groundup quickstart`: `groundup new` on little stories that a grammar writes."""

import json
from pathlib import Path

from pydantic import Field

from groundup.cli import data_sample, new
from groundup.files import write_text_atomic

PROMPT = "Once upon a time,"


class Arguments(new.MakeFlags):
    """Train a small story model on a built-in corpus, explaining each step."""

    folder: Path = Path("quickstart")
    """Output folder; delete it to start over."""

    megabytes: float = Field(default=20.0, gt=0, le=10**6)
    """Amount of text to write, in megabytes."""

    minutes: float = Field(default=5.0, gt=0, le=10**6)
    """Time budget for everything."""

    max_tokens: int = Field(default=320, ge=1, le=10**6)
    """Maximum tokens per generated story."""


def run(arguments: Arguments) -> int:
    """Write the stories, then learn from them; a signal that stopped it decides the status."""
    folder = arguments.folder
    corpus, note = folder / "stories.txt", folder / "stories.json"
    shared = arguments.model_dump(exclude={"folder", "megabytes"})
    wanted = new.Arguments(files=(str(corpus),), name="stories", **shared)
    project = new.Project(wanted, "stories", folder, folder / "runs", prompts=(PROMPT,))
    project.check()
    sample = data_sample.Arguments(
        megabytes=arguments.megabytes, seed=arguments.seed, out=corpus, kind="stories"
    )
    made_from = json.dumps([arguments.megabytes, arguments.seed], indent=2) + "\n"
    is_done = corpus.exists() and note.exists() and note.read_bytes() == made_from.encode()
    new.take_step("Text: little stories from a grammar", "data sample", sample, is_done=is_done)
    if not is_done:
        write_text_atomic(note, made_from)
    return new.make(project)
