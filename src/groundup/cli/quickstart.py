"""`groundup quickstart`: `groundup new` on little stories that a grammar writes."""

from dataclasses import dataclass
from pathlib import Path

from groundup.cli import new
from groundup.cli.new_plan import Project
from groundup.cli.project_folder import ProjectFolder
from groundup.cli.steps import take_step
from groundup.errors import ConfigError
from groundup.runtime import process_start

PROMPT = "Once upon a time,"


@dataclass(frozen=True)
class Arguments:
    """Walk from a built-in corpus to a model of little stories, explaining each step."""

    folder: Path = Path("quickstart")
    """Where everything goes; delete it to start over."""

    megabytes: float = 20.0
    """How much text to write, in millions of bytes."""

    vocab_size: int | None = None
    """Tokens in the vocabulary; chosen for text and time if not given."""

    num_steps: int | None = None
    """The most steps to train; more steps, better stories."""

    minutes: float = 5.0
    """How long all of it may take."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps; auto takes the fastest there is."""

    exportable: bool = False
    """Keep to the parts of a model that other programs know, so that it can be exported; it learns
    less in the same time."""

    max_tokens: int = 320
    """The most tokens of a generated story."""

    seed: int = 0
    """Seed of the corpus, of the initial weights and of the data order."""


def run(arguments: Arguments) -> int:
    """Write the stories, then learn from them; a signal that stopped it decides the status."""
    if not 0 < arguments.megabytes < float("inf"):
        raise ConfigError(f"--megabytes must be more than 0, got {arguments.megabytes:g}")
    folder = ProjectFolder(arguments.folder)
    corpus = folder.path / "stories.txt"
    settings = new.Arguments(
        files=(str(corpus),),
        name="stories",
        minutes=arguments.minutes,
        device=arguments.device,
        vocab_size=arguments.vocab_size,
        num_steps=arguments.num_steps,
        exportable=arguments.exportable,
        max_tokens=arguments.max_tokens,
        seed=arguments.seed,
    )
    runs_folder = folder.path / "runs"
    project = Project(settings, "stories", folder, runs_folder, process_start(), prompts=(PROMPT,))
    new.check(project)
    amount = f"{arguments.megabytes:g}"
    words = ["data", "sample", "--megabytes", amount, "--seed", arguments.seed, "--out", corpus]
    with folder.keeping(corpus, {"megabytes": amount, "seed": arguments.seed}) as is_kept:
        take_step("Text: little stories from a grammar", words, is_kept=is_kept)
    return new.make(project)
