"""`groundup new`: from a person's own text to a model of it, verb by verb.

Each step is a command that a person could type, shown and run; what is done is kept when it runs
again, and an interrupted training is resumed. What is chosen is left behind as a settings file.
"""

import hashlib
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from groundup.cli.new_plan import Project, minutes_left, write_plan
from groundup.cli.project_folder import ProjectFolder
from groundup.cli.shared import RUNS_FOLDER, ReadingFlags
from groundup.cli.steps import show_commands, take_step
from groundup.errors import ConfigError
from groundup.runtime import process_start
from groundup.text_files import STDIN, Source, find_sources

PREPARED_FOLDER = Path("prepared")
# Where `groundup serve` listens unless it is told otherwise.
ADDRESS = "http://127.0.0.1:8000"


class Arguments(ReadingFlags):
    """Train a model on your own text: look at it, choose settings for it and for this machine,
    train for some minutes, evaluate, and generate."""

    files: Positional[tuple[str, ...]]
    """Files, folders or globs: .txt, .md, .html, source code, .jsonl, .csv, .parquet and more, also
    packed as .gz, .zst or .xz."""

    name: str | None = None
    """Name of the run in runs, and of the folder in prepared for its tokenizer, shards and
    settings; after the text if not given."""

    minutes: float = 10.0
    """How long all of it may take."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps; auto takes the fastest there is."""

    vocab_size: int | None = None
    """Tokens in the vocabulary; chosen for the text if not given."""

    num_steps: int | None = None
    """The most steps to train."""

    exportable: bool = True
    """Keep to the parts of a model that other programs know, so that it can be exported; without
    them it learns more in the same time, and groundup alone can run it."""

    max_tokens: int = 200
    """The most tokens of each sample at the end."""

    seed: int = 0
    """Seed of the initial weights and of the data order."""


def run(arguments: Arguments) -> int:
    """Take the steps; a signal that stopped the training decides the status."""
    if not arguments.files:
        raise ConfigError("groundup new needs the text to learn from: a folder, files or a glob")
    name = arguments.name or _name_of(arguments.files[0])
    folder = ProjectFolder(PREPARED_FOLDER / name)
    return make(Project(arguments, name, folder, RUNS_FOLDER, process_start()))


def make(project: Project) -> int:
    """From text to a model; the exit status."""
    arguments, folder = project.arguments, project.folder
    check(project)
    sources = find_sources(arguments.files)
    text = _fingerprint(sources)
    wanted = {
        "text": text,
        **arguments.reading,
        "minutes": arguments.minutes,
        "device": arguments.device,
        "vocab_size": arguments.vocab_size,
        "num_steps": arguments.num_steps,
        "exportable": arguments.exportable,
        "seed": arguments.seed,
    }
    with folder.keeping(folder.config, wanted) as is_kept:
        title = "1  A plan: settings for this text, this machine and this time"
        show_commands(title)
        if is_kept:
            print(f"made before, and kept: {folder.config}")
        else:
            write_plan(project, sources)
    plan: dict[str, Any] = folder.note("plan")
    _prepare(project, plan, text)
    if status := _train(project, plan):
        return status
    _look(project, plan)
    return 0


def check(project: Project) -> None:
    """Raise ConfigError for what cannot be made, before anything is written."""
    from groundup.config import load_settings
    from groundup.runs.config import RunConfig

    arguments = project.arguments
    if not 0 < arguments.minutes < float("inf"):
        raise ConfigError(f"--minutes must be more than 0, got {arguments.minutes:g}")
    for flag, value in (("num-steps", arguments.num_steps), ("max-tokens", arguments.max_tokens)):
        if value is not None and value < 1:
            raise ConfigError(f"--{flag} must be at least 1, got {value}")
    if arguments.vocab_size is not None and arguments.vocab_size < 257:
        raise ConfigError(f"--vocab-size must be at least 257, got {arguments.vocab_size}")
    asked = {"name": project.name, "device": arguments.device, "seed": arguments.seed}
    load_settings(RunConfig, overrides=asked)
    path = project.folder.path
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file, and the folder of that name is needed; use --name")
    if path.is_dir() and not project.folder.note("plan") and any(path.iterdir()):
        holds = {one.name for one in path.iterdir()}
        if holds - {"new.json", "stories.txt"}:
            raise ConfigError(f"folder {path} holds other files; choose another --name")
    named_after = (project.folder.note("plan") or {}).get("named_after", project.named_after)
    if arguments.name is None and named_after != project.named_after:
        raise ConfigError(f"{path} was made from {named_after}; choose another --name")


def _prepare(project: Project, plan: dict[str, Any], text: str) -> None:
    """A vocabulary, shards, and a few words as ids."""
    from groundup.data.shards import INDEX_NAME, SIDECARS

    folder, files = project.folder, project.arguments.files
    size = plan["vocab_size"]
    words = ["tokenizer", "train", *files, "--vocab-size", size, "--out", folder.tokenizer]
    wanted = {"text": text, **project.arguments.reading, "vocab_size": size}
    folder.is_fresh = False
    with folder.keeping(folder.tokenizer, wanted) as is_kept:
        title = "2  A vocabulary: the most frequent pairs, merged again and again"
        take_step(title, [*words, *project.reading_words], is_kept=is_kept)
    words = ["data", "prepare", *files, "--tokenizer", folder.tokenizer, "--out", folder.shards]
    words += ["--validation-fraction", plan["validation_fraction"], *project.reading_words]
    # Shards older than the vocabulary are of another one, whenever that was made.
    marks = [folder.shards / INDEX_NAME, *folder.shards.glob(SIDECARS)]
    newest = max((mark.stat().st_mtime_ns for mark in marks if mark.exists()), default=0)
    if folder.shards.exists() and newest < folder.tokenizer.stat().st_mtime_ns:
        words.append("--overwrite")
    take_step("3  Shards: every document as ids, ready to be mapped into memory", words)
    words = ["tokenizer", "inspect", plan["prompts"][0], "--tokenizer", folder.tokenizer]
    take_step("Words as the model will see them", words)


def _train(project: Project, plan: dict[str, Any]) -> int:
    """Train, resume, or find that it is done; the exit status if a signal stopped it."""
    from groundup.runs.folder import RunFolder

    run = RunFolder(project.runs_folder / plan["name"])
    words: list[Any] = ["train", "--config", project.folder.config]
    words += ["--minutes", f"{minutes_left(project):.2f}"]
    if project.arguments.num_steps is not None:
        words += ["--num-steps", project.arguments.num_steps]
    is_done = False
    if run.has_run():
        words = ["train", "--config", run.config_file, "--resume"]
        outcome = run.read_outcome()
        is_done = outcome is not None and outcome.state == "finished"
    title = "4  A model: it guesses the next token, and learns from every miss"
    status = take_step(title, words, is_kept=is_done, started=time.monotonic())
    if status:
        print("or run what you typed again: it resumes from there, then evaluates and generates")
    return status


def _look(project: Project, plan: dict[str, Any]) -> None:
    """Evaluate, generate, and say what can be done next."""
    from groundup.data.shards import read_index

    folder, run = project.folder, project.runs_folder / plan["name"]
    checkpoint = _best_checkpoint(run)
    validation = read_index(folder.shards).splits.get("validation")
    if validation is not None and validation.num_ids > 1:
        take_step("5  Evaluation: text that it has never seen", ["evaluate", run, *checkpoint])
    else:
        print("\nNo validation split: the text is too short to keep some of it aside")
    prompts = plan["prompts"]
    settings = ["--max-tokens", project.arguments.max_tokens, "--temperature", 0.7]
    settings += ["--top-p", 0.95, "--past-context", "slide", "--seed", 1]
    for index, prompt in enumerate(prompts):
        words = ["generate", run, *checkpoint, "--prompt", prompt, *settings]
        title = "6  Three samples, generated token by token" if index == 0 else ""
        # As many of each beginning as make three.
        count = len(range(index, 3, len(prompts)))
        take_step(title, [*words, "--num-samples", count] if count > 1 else words)
    show_commands("Look at it in a browser", ["serve", run])
    print(f"then open {ADDRESS}; Ctrl-C ends it")
    more = ["--name", f"{plan['name']}-longer", "--minutes", 30]
    export = ["export", run, "--to", "huggingface", folder.path / "exports" / plan["name"]]
    if not project.arguments.exportable:
        export = ["new", *project.arguments.files, "--name", f"{plan['name']}-exportable"]
    show_commands(
        "What to try next",
        ["generate", run, "--prompt", "Your own beginning", *settings],
        ["train", "--config", folder.config, *more],
        ["train", "--from", run, "--config", folder.config, "--name", f"{plan['name']}-more"],
        ["data", "sample", "--kind", "dialogues", "--out", "chats.jsonl"],
        ["tune", run, "chats.jsonl"],
        export,
        ["tokenizer", "inspect", "Your own sentence.", "--tokenizer", folder.tokenizer],
        ["--help"],
    )


def _best_checkpoint(run: Path) -> list[str]:
    """The flag for the checkpoint of the lowest validation loss, where it is not the newest."""
    from groundup.runs.folder import RunFolder, list_checkpoints

    _, *older = list_checkpoints(RunFolder(run).checkpoints)
    return ["--checkpoint", "best"] if any(one["is_best"] for one in older) else []


def _name_of(source: str) -> str:
    """A name for runs and folders from that of a file or folder."""
    stem = Path(source).resolve().name.split(".")[0]
    return re.sub(r"[^A-Za-z0-9._+=-]+", "-", stem).strip("-._+=") or "model"


def _fingerprint(sources: Sequence[Source]) -> str:
    """Changes when a file does: of names, sizes and times."""
    if any(source.path == STDIN for source in sources):
        raise ConfigError("the text is read more than once: save standard input to a file first")
    found = hashlib.sha256()
    for source in sources:
        found.update(os.fsencode(source) + f"\0{source.size}, {source.stamp}\0".encode())
    return found.hexdigest()
