"""`groundup quickstart`: from nothing to a model of little stories, verb by verb.

Each step is a command that a person could type, shown and run; finished ones are kept when it runs
again, and an interrupted training is resumed.
"""

import shlex
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groundup.cli.quickstart.folder import QuickstartFolder
from groundup.errors import ConfigError

SENTENCE = "a little fox"
PROMPT = "Once upon a time,"
# Where `groundup serve` listens unless it is told otherwise.
ADDRESS = "http://127.0.0.1:8000"


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
    """Take the steps; a signal that stopped the training decides the status."""
    for flag, amount in (("megabytes", arguments.megabytes), ("minutes", arguments.minutes)):
        if not 0 < amount < float("inf"):
            raise ConfigError(f"--{flag} must be more than 0, got {amount:g}")
    for flag, value in (("num-steps", arguments.num_steps), ("max-tokens", arguments.max_tokens)):
        if value < 1:
            raise ConfigError(f"--{flag} must be at least 1, got {value}")
    if arguments.folder.exists() and not arguments.folder.is_dir():
        raise ConfigError(f"--folder {arguments.folder} is a file; name a folder")
    folder = QuickstartFolder(arguments.folder)
    _make_text(arguments, folder)
    if status := _train(arguments, folder):
        return status
    _look(arguments, folder)
    return 0


def _make_text(arguments: Arguments, folder: QuickstartFolder) -> None:
    """A corpus, a vocabulary, shards, and a few words as ids."""
    corpus, tokenizer = folder.corpus, folder.tokenizer
    amount, size = f"{arguments.megabytes:g}", arguments.vocab_size
    words = ["data", "sample", "--megabytes", amount, "--seed", arguments.seed, "--out", corpus]
    with folder.keeping(corpus, {"megabytes": amount, "seed": arguments.seed}) as is_kept:
        _step("1  Text: little stories from a grammar", words, is_kept=is_kept)
    words = ["tokenizer", "train", corpus, "--vocab-size", size, "--out", tokenizer]
    with folder.keeping(tokenizer, {"vocab_size": size}) as is_kept:
        title = "2  A vocabulary: the most frequent pairs, merged again and again"
        _step(title, words, is_kept=is_kept)
    words = ["data", "prepare", corpus, "--tokenizer", tokenizer, "--out", folder.shards]
    title = "3  Shards: every document as ids, ready to be mapped into memory"
    _step(title, [*words, "--overwrite"] if folder.is_fresh else words)
    words = ["data", "verify", folder.shards, "--tokenizer", tokenizer]
    _step("4  A check: every hash, every id", words)
    words = ["tokenizer", "inspect", SENTENCE, "--tokenizer", tokenizer]
    _step("Words as the model will see them", words)


def _train(arguments: Arguments, folder: QuickstartFolder) -> int:
    """Train, resume, or find that it is done; the exit status if a signal stopped it."""
    from groundup.checkpoint import CheckpointFolder
    from groundup.cli.quickstart.recipe import run_config
    from groundup.config import save_yaml
    from groundup.data.shards import read_index
    from groundup.runs.folder import RunFolder

    config = run_config(
        arguments.folder,
        read_index(folder.shards).vocab_size,
        num_steps=arguments.num_steps,
        sample_tokens=min(48, arguments.max_tokens),
        seed=arguments.seed,
    )
    run = RunFolder(config.run_folder)
    wanted = {"settings": config.model_dump(mode="json"), "minutes": arguments.minutes}
    with folder.keeping(folder.config, wanted) as is_kept:
        if not is_kept:
            # A run of other settings or other data makes room for the one that is wanted now.
            shutil.rmtree(config.run_folder, ignore_errors=True)
            save_yaml(folder.config, config)
    words = ["train", "--config", folder.config, "--num-steps", config.num_steps]
    words += ["--minutes", f"{arguments.minutes:g}"]
    is_done = False
    if run.has_run():
        # It knows how many steps fit into its time.
        words = ["train", "--config", run.config_file, "--resume"]
        steps = CheckpointFolder(run.checkpoints).steps()
        is_done = bool(steps) and steps[-1] >= run.read_config().num_steps
    title = "5  A model: it guesses the next token, and learns from every miss"
    status = _step(title, words, is_kept=is_done, started=time.monotonic())
    if status:
        print("run groundup quickstart again to resume from there")
    return status


def _look(arguments: Arguments, folder: QuickstartFolder) -> None:
    """Evaluate, generate, and say what can be done next."""
    from groundup.data.shards import read_index

    validation = read_index(folder.shards).splits.get("validation")
    if validation is not None and validation.num_ids > 1:
        words = ["evaluate", folder.run, "--whole"]
        _step("6  Evaluation: stories that it has never seen", words)
    else:
        print("\nNo validation split: the corpus is too small; try more --megabytes")
    generate = ["--max-tokens", arguments.max_tokens, "--temperature", 0.7, "--top-p", 0.95]
    generate += ["--seed", 1, "--past-context", "slide"]
    words = ["generate", folder.run, "--prompt", PROMPT, *generate, "--num-samples", 3]
    _step("7  Three stories, generated token by token", words)
    _show("Look at it in a browser", ["serve", folder.run])
    print(f"then open {ADDRESS}; Ctrl-C ends it")
    larger = ["--name", "larger", "--model.num-layers", 6, "--num-steps", 2000]
    _show(
        "What to try next",
        ["generate", folder.run, "--prompt", "The little fox", *generate],
        ["export", folder.run, "--to", "huggingface", folder.path / "exports" / folder.run.name],
        ["evaluate", folder.run, "--checkpoint", "best"],
        ["verify-resume", folder.run],
        ["train", "--config", folder.config, *larger],
        ["tokenizer", "inspect", "Your own sentence.", "--tokenizer", folder.tokenizer],
        ["data", "download", "tinystories"],
        ["--help"],
    )


def _step(title: str, words: list[Any], *, is_kept: bool = False, **options: Any) -> int:
    """Show a command and run it, unless what it makes is kept."""
    from groundup.cli.main import run_verb

    _show(title, words)
    if is_kept:
        print("done before, and kept")
        return 0
    return run_verb(list(map(str, words)), **options)


def _show(title: str, *commands: list[Any]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    console.print("\n", Text(title, style="bold"), sep="")
    for words in commands:
        line = f"$ {shlex.join(['groundup', *map(str, words)])}"
        console.print(Text(line, style="green"), soft_wrap=True)
