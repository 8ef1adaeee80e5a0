"""`groundup quickstart`: from nothing to a model of little stories, explaining each step.

Every step is one that a person could type; finished ones are kept when it runs again, and a
interrupted training is resumed.
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
    for flag, amount in (("megabytes", arguments.megabytes), ("minutes", arguments.minutes)):
        if not 0 < amount < float("inf"):
            raise ConfigError(f"--{flag} must be more than 0, got {amount:g}")
    for flag, value in (("num-steps", arguments.num_steps), ("max-tokens", arguments.max_tokens)):
        if value < 1:
            raise ConfigError(f"--{flag} must be at least 1, got {value}")
    if arguments.folder.exists() and not arguments.folder.is_dir():
        raise ConfigError(f"--folder {arguments.folder} is a file; name a folder")
    from groundup.cli.quickstart import model_steps, text_steps
    from groundup.cli.quickstart.folder import QuickstartFolder
    from groundup.cli.quickstart.page import Page
    from groundup.cli.quickstart.recipe import run_config

    page, folder = Page(), QuickstartFolder(arguments.folder)
    text_steps.write_corpus(arguments, folder, page)
    tokenizer = text_steps.train_tokenizer(arguments, folder, page)
    text_steps.prepare_shards(folder, page, tokenizer)
    text_steps.verify_shards(folder, page, tokenizer)
    text_steps.show_sentence(folder, page, tokenizer)
    config = run_config(
        arguments.folder,
        tokenizer.vocab_size,
        num_steps=arguments.num_steps,
        sample_tokens=min(48, arguments.max_tokens),
        seed=arguments.seed,
    )
    status = model_steps.train(config, folder, page, arguments.minutes)
    if status:
        return status
    model_steps.evaluate(config, page)
    model_steps.generate_stories(config, page, arguments.max_tokens)
    model_steps.show_what_is_next(config, folder, page, arguments.max_tokens)
    return 0
