"""`groundup quickstart`: from nothing to a model of little stories, explaining each step.

Every step is one that a person could type; finished ones are kept when it runs again, and a
training that was interrupted goes on.
"""

from dataclasses import dataclass
from pathlib import Path

from groundup.errors import ConfigError


@dataclass(frozen=True)
class Arguments:
    """Walk from a built-in corpus to a model of little stories, explaining each step."""

    folder: Path = Path("quickstart")
    """Where everything goes; delete it to start over."""

    megabytes: float = 20.0
    """How much text to write, in millions of bytes."""

    vocab_size: int = 4096
    """Tokens in the vocabulary."""

    num_steps: int = 800
    """The most steps to train; more steps, better stories."""

    minutes: float = 4.5
    """The most minutes to train: steps are timed, and fewer are taken if need be."""

    max_tokens: int = 320
    """The most tokens of a generated story."""

    seed: int = 0
    """Seed of the corpus, of the initial weights and of the data order."""


def run(arguments: Arguments) -> int:
    """Take the steps and print the page; a signal that stopped the training decides the status."""
    from groundup.cli.quickstart.journal import Journal
    from groundup.cli.quickstart.model_steps import ModelSteps
    from groundup.cli.quickstart.page import Page
    from groundup.cli.quickstart.text_steps import TextSteps

    for flag, amount in (("megabytes", arguments.megabytes), ("minutes", arguments.minutes)):
        if not 0 < amount < float("inf"):
            raise ConfigError(f"--{flag} must be more than 0, got {amount:g}")
    for flag, value in (("num-steps", arguments.num_steps), ("max-tokens", arguments.max_tokens)):
        if value < 1:
            raise ConfigError(f"--{flag} must be at least 1, got {value}")
    if arguments.folder.exists() and not arguments.folder.is_dir():
        raise ConfigError(f"--folder {arguments.folder} is a file; name a folder")
    page, journal = Page(), Journal(arguments.folder)
    text = TextSteps(arguments, page, journal)
    text.write_corpus()
    text.train_tokenizer()
    text.prepare_shards()
    text.verify_shards()
    text.show_sentence()
    model = ModelSteps(arguments, page, journal, vocab_size=text.tokenizer.vocab_size)
    status = model.train()
    if status:
        return status
    model.evaluate()
    model.generate_stories()
    model.show_what_is_next()
    return 0
