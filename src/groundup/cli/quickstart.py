"""`groundup quickstart`: `groundup new` on little stories that a grammar writes."""

from pathlib import Path

from pydantic import Field

from groundup.cli import data_sample, new
from groundup.cli.arguments import as_command, show_commands, take_step
from groundup.config import MAX_STEPS, Seed, Settings
from groundup.files import parse_json, write_json_atomic

PROMPT = "Once upon a time,"


class Arguments(Settings):
    """Walk from a built-in corpus to a model of little stories, explaining each step."""

    folder: Path = Path("quickstart")
    """Where everything goes; delete it to start over."""

    megabytes: float = Field(20.0, gt=0)
    """How much text to write, in millions of bytes."""

    vocab_size: int | None = Field(None, ge=257, le=10**8)
    """Tokens in the vocabulary; chosen for text and time if not given."""

    num_steps: int | None = Field(None, ge=1, le=MAX_STEPS)
    """The most steps to train; more steps, better stories."""

    minutes: float = Field(5.0, gt=0, le=10**6)
    """How long all of it may take."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps; auto takes the fastest there is."""

    exportable: bool = False
    """Keep to the parts of a model that other programs know, so that it can be exported; it learns
    less in the same time."""

    max_tokens: int = Field(320, ge=1, le=10**6)
    """The most tokens of a generated story."""

    seed: Seed = 0
    """Seed of the corpus, of the initial weights and of the data order."""


def run(arguments: Arguments) -> int:
    """Write the stories, then learn from them; a signal that stopped it decides the status."""
    folder = arguments.folder
    corpus, note = folder / "stories.txt", folder / "stories.json"
    shared = arguments.model_dump(exclude={"folder", "megabytes"})
    wanted = new.Arguments(files=(str(corpus),), name="stories", **shared)
    project = new.Project(wanted, "stories", folder, folder / "runs", prompts=(PROMPT,))
    new.check(project)
    sample = data_sample.Arguments(
        megabytes=arguments.megabytes, seed=arguments.seed, out=corpus, kind="stories"
    )
    made_from = [arguments.megabytes, arguments.seed]
    title = "Text: little stories from a grammar"
    if corpus.exists() and note.exists() and parse_json(note.read_bytes()) == made_from:
        show_commands(title, as_command("data sample", sample))
        print("done before, and kept")
    else:
        take_step(title, "data sample", sample)
        write_json_atomic(note, made_from)
    return new.make(project)
