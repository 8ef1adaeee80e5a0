"""`groundup new`: from a person's own text to a model of it, verb by verb.

Each step is a command that a person could type, shown and run. A second run of the same command
keeps what is done and resumes an interrupted training. The settings are left behind as a file.
"""

import hashlib
import json
import os
import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field
from tyro.conf import Positional

from groundup.cli.arguments import as_command, show_commands, take_step
from groundup.cli.shared import RUNS_FOLDER, ReadingFlags
from groundup.config import MAX_STEPS, Seed
from groundup.errors import ConfigError, DataError
from groundup.files import parse_json, write_json_atomic
from groundup.runs.config import NAME_PATTERN
from groundup.runtime import count_of, format_duration, process_start
from groundup.text_files import STDIN, Source, find_sources, path_text

if TYPE_CHECKING:
    from groundup.data.survey import Survey
    from groundup.training.recipe import Recipe

PREPARED_FOLDER = Path("prepared")
# Kept of the time for the evaluation and the samples at the end.
_LAST_FRACTION, _LAST_MINUTES = 0.04, 0.5
_VALIDATION_BYTES = 300_000
_FEW_BYTES = 20_000
# The most of the time that reading the text may take, and what it usually takes.
_MOST_READING, _USUAL_READING = 0.7, 0.3


class Arguments(ReadingFlags):
    """Train a model on your own text: look at it, choose settings for it and for this machine,
    train for some minutes, evaluate, and generate."""

    files: Positional[tuple[str, ...]]
    """Files, folders or globs: .txt, .md, .html, source code, .jsonl, .csv, .parquet and more, also
    packed as .gz, .zst or .xz."""

    name: str | None = Field(None, pattern=NAME_PATTERN, max_length=200)
    """Name of the run in runs, and of the folder in prepared for its tokenizer, shards and
    settings; after the text if not given."""

    minutes: float = Field(10.0, gt=0, le=10**6)
    """How long all of it may take."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps; auto takes the fastest there is."""

    vocab_size: int | None = Field(None, ge=257, le=10**8)
    """Tokens in the vocabulary; chosen for the text if not given."""

    num_steps: int | None = Field(None, ge=1, le=MAX_STEPS)
    """The most steps to train."""

    exportable: bool = True
    """Keep to the parts of a model that other programs know, so that it can be exported; without
    them it learns more in the same time, and groundup alone can run it."""

    max_tokens: int = Field(200, ge=1, le=10**6)
    """The most tokens of each sample at the end."""

    seed: Seed = 0
    """Seed of the initial weights and of the data order."""


@dataclass(frozen=True)
class Project:
    """What is to be made, of what, and where."""

    arguments: Arguments
    name: str
    folder: Path
    runs_folder: Path
    prompts: tuple[str, ...] = ()
    """What the samples continue; beginnings of documents if empty."""

    @property
    def config(self) -> Path:
        return self.folder / "train.yaml"

    @property
    def tokenizer(self) -> Path:
        return self.folder / "tokenizer.json"

    @property
    def shards(self) -> Path:
        return self.folder / "shards"

    @property
    def minutes_left(self) -> float:
        """For the training; what comes after it takes a little, too."""
        whole = self.arguments.minutes
        passed = (time.monotonic() - process_start()) / 60
        return max(0.01, whole - passed - min(_LAST_MINUTES, _LAST_FRACTION * whole))

    def read_plan(self) -> dict[str, Any]:
        """What was chosen before; empty if nothing was."""
        try:
            found = parse_json((self.folder / "new.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) and self.config.exists() else {}


def run(arguments: Arguments) -> int:
    """Take the steps; a signal that stopped the training decides the status."""
    name = arguments.name or _name_of(arguments.files[0])
    return make(Project(arguments, name, PREPARED_FOLDER / name, RUNS_FOLDER))


def make(project: Project) -> int:
    """From text to a model; the exit status."""
    check(project)
    sources = find_sources(project.arguments.files)
    fingerprint = _fingerprint(sources, project.arguments)
    show_commands("1  A plan: settings for this text, this machine and this time")
    plan = project.read_plan()
    if plan.get("fingerprint") == fingerprint:
        print(f"made before, and kept: {project.config}")
    else:
        plan = _choose_plan(project, sources) | {"fingerprint": fingerprint}
        # Made from other text or for another vocabulary.
        project.tokenizer.unlink(missing_ok=True)
        write_json_atomic(project.folder / "new.json", plan)
    _prepare(project, plan)
    if status := _train(project, plan):
        print("or run what you typed again: it resumes from there, then evaluates and generates")
        return status
    _look(project, plan)
    return 0


def check(project: Project) -> None:
    """Raise ConfigError for what cannot be made, before anything is written."""
    from groundup.config import load_settings
    from groundup.runs.config import RunConfig

    load_settings(RunConfig, overrides={"device": project.arguments.device})
    path, plan = project.folder, project.read_plan()
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file, and the folder of that name is needed; use --name")
    own = {"new.json", "stories.txt", "stories.json", "train.yaml"}
    if path.is_dir() and not plan and {one.name for one in path.iterdir()} - own:
        raise ConfigError(f"folder {path} holds other files; choose another --name")
    named_after = plan.get("named_after", _named_after(project))
    if project.arguments.name is None and named_after != _named_after(project):
        raise ConfigError(f"{path} was made from {named_after}; choose another --name")


def _choose_plan(project: Project, sources: Sequence[Source]) -> dict[str, Any]:
    """Look, choose, say why, and leave the settings behind."""
    from groundup.cli.terminal import print_results
    from groundup.config import as_yaml
    from groundup.data.survey import survey_text
    from groundup.files import write_text_atomic

    arguments = project.arguments
    began = time.monotonic()
    survey = survey_text(sources, **arguments.reading)
    if arguments.num_steps is None:
        _check_time(arguments.minutes, time.monotonic() - began, len(sources))
    recipe, machine = _choose_recipe(project, survey)
    num_bytes, context_length = survey.num_bytes, recipe.config.model.context_length
    if num_bytes <= context_length:
        raise DataError(
            f"the text has {count_of(num_bytes, 'byte')} and one context {context_length} tokens: "
            f"give more text, {_FEW_BYTES:,} bytes or more to learn anything general"
        )
    if num_bytes < _FEW_BYTES:
        print(f"a model needs more text than {num_bytes:,} bytes to learn anything general")
    name = _free_name(project)
    prompts = project.prompts or survey.prompts or ("The",)
    values = json.loads(recipe.config.model_dump_json(exclude_defaults=True))
    # It comes from the shards: a small text may have fewer.
    values["model"].pop("vocab_size", None)
    data = {"shards": str(project.shards), "tokenizer": str(project.tokenizer)}
    values = {
        "name": name,
        "runs_folder": str(project.runs_folder),
        "seed": arguments.seed,
        **({} if arguments.device == "auto" else {"device": arguments.device}),
        **values,
        "data": {**data, **values.get("data", {})},
        "samples": {**values.get("samples", {}), "prompts": list(prompts[:1])},
    }
    files = path_text(shlex.join(arguments.files)[:80])
    head = f"# What groundup new chose for {files}. To train it again:\n#\n"
    head += f"#   groundup train --config {project.config} --name {name}-again\n\n"
    write_text_atomic(project.config, head + as_yaml(values))
    lines = [("text", _describe(survey)), ("machine", machine), *recipe.reasons]
    lines.append(("time", f"{arguments.minutes:g} minutes in all (--minutes)"))
    print_results(f"wrote {project.config}", lines)
    fraction = min(0.1, max(0.002, _VALIDATION_BYTES / num_bytes))
    return {
        "name": name,
        "named_after": _named_after(project),
        "vocab_size": recipe.config.model.vocab_size,
        "prompts": list(prompts),
        "validation_fraction": float(f"{fraction:.2g}"),
    }


def _choose_recipe(project: Project, survey: "Survey") -> tuple["Recipe", str]:
    """The recipe for the speed that this machine has with it, and that speed in words."""
    from groundup.config import load_settings
    from groundup.planner import step_flops
    from groundup.planner.quantities import show_flops
    from groundup.runs.config import RunConfig
    from groundup.runtime import memory_bytes
    from groundup.training.machine import device_name, find_peak
    from groundup.training.probe import probe_this_machine
    from groundup.training.recipe import GUESSED_UTILIZATION, choose_recipe
    from groundup.training.resolve import resolve_device

    arguments = project.arguments
    device = resolve_device(load_settings(RunConfig, overrides={"device": arguments.device}))
    speed = GUESSED_UTILIZATION * (find_peak(device) or 1e11)
    seconds = max(1.0, project.minutes_left * 60)

    def choose(speed: float) -> "Recipe":
        return choose_recipe(
            flops=speed * seconds,
            num_bytes=survey.num_bytes,
            vocab_size=arguments.vocab_size,
            document_bytes=survey.document_bytes,
            max_steps=arguments.num_steps,
            is_exportable=arguments.exportable,
            is_on_cpu=device.device == "cpu",
        )

    recipe = choose(speed)
    # A smaller model is slower at its operations: what was measured may want another.
    for _ in range(2):
        config = recipe.config.model_copy(update={"device": arguments.device})
        probe = probe_this_machine(config, memory_bytes())
        per_token = step_flops(config.model, 1) / config.model.context_length
        speed = probe.tokens_per_second * per_token
        before, recipe = recipe, choose(speed)
        if recipe.config.model == before.config.model:
            break
    return recipe, f"{device_name(device)}: {show_flops(speed)} a second in steps of this model"


def _prepare(project: Project, plan: dict[str, Any]) -> None:
    """A vocabulary, shards, and a few words as ids."""
    from groundup.cli import data_prepare, tokenizer_inspect, tokenizer_train

    files, reading = project.arguments.files, project.arguments.reading
    train = tokenizer_train.Arguments(
        files=files, vocab_size=plan["vocab_size"], out=project.tokenizer, **reading
    )
    title = "2  A vocabulary: the most frequent pairs, merged again and again"
    if project.tokenizer.exists():
        show_commands(title, as_command("tokenizer train", train))
        print("done before, and kept")
    else:
        take_step(title, "tokenizer train", train)
    # Shards older than the vocabulary are of another one.
    newest = max((path.stat().st_mtime_ns for path in project.shards.glob("*")), default=0)
    prepare = data_prepare.Arguments(
        files=files,
        tokenizer=project.tokenizer,
        out=project.shards,
        validation_fraction=plan["validation_fraction"],
        overwrite=0 < newest < project.tokenizer.stat().st_mtime_ns,
        **reading,
    )
    title = "3  Shards: every document as ids, ready to be mapped into memory"
    take_step(title, "data prepare", prepare)
    inspect = tokenizer_inspect.Arguments(text=plan["prompts"][0], tokenizer=project.tokenizer)
    take_step("Words as the model will see them", "tokenizer inspect", inspect)


def _train(project: Project, plan: dict[str, Any]) -> int:
    """Train, resume, or find that it is done; the exit status if a signal stopped it."""
    from groundup.cli import train
    from groundup.runs.folder import RunFolder

    title = "4  A model: it guesses the next token, and learns from every miss"
    run = RunFolder(project.runs_folder / plan["name"])
    if not run.has_run():
        settings: dict[str, Any] = {"minutes": round(project.minutes_left, 2)}
        if project.arguments.num_steps is not None:
            settings["num_steps"] = project.arguments.num_steps
        arguments = train.Arguments(config=project.config, settings=settings)
        return take_step(title, "train", arguments, started=time.monotonic())
    arguments = train.Arguments(config=run.config_file, resume=True)
    outcome = run.read_outcome()
    if outcome is not None and outcome.state == "finished":
        show_commands(title, as_command("train", arguments))
        print("done before, and kept")
        return 0
    return take_step(title, "train", arguments, started=time.monotonic())


def _look(project: Project, plan: dict[str, Any]) -> None:
    """Evaluate, generate, and say what can be done next."""
    from groundup.cli import evaluate, generate
    from groundup.data.shards import read_index
    from groundup.runs.folder import RunFolder, list_checkpoints

    folder = project.runs_folder / plan["name"]
    found = list_checkpoints(RunFolder(folder).checkpoints)
    is_older = any(one["is_best"] for one in found[1:])
    checkpoint = {"run": str(folder), "checkpoint": "best" if is_older else "newest"}
    validation = read_index(project.shards).splits.get("validation")
    if validation is not None and validation.num_ids > 1:
        title = "5  Evaluation: text that it has never seen"
        take_step(title, "evaluate", evaluate.Arguments(**checkpoint))
    else:
        print("\nNo validation split: the text is too short to keep some of it aside")
    prompts = plan["prompts"]
    sampling: dict[str, Any] = {
        "max_tokens": project.arguments.max_tokens,
        "temperature": 0.7,
        "top_p": 0.95,
        "past_context": "slide",
        "seed": 1,
    }
    for index, prompt in enumerate(prompts):
        # As many of each beginning as make three.
        count = len(range(index, 3, len(prompts)))
        title = "6  Three samples, generated token by token" if index == 0 else ""
        arguments = generate.Arguments(**checkpoint, **sampling, prompt=prompt, num_samples=count)
        take_step(title, "generate", arguments)
    run, config = shlex.quote(str(folder)), shlex.quote(str(project.config))
    show_commands("Look at it in a browser", f"groundup serve {run}")
    print("then open http://127.0.0.1:8000; Ctrl-C ends it")
    name, exports = plan["name"], shlex.quote(str(project.folder / "exports" / plan["name"]))
    export = f"groundup export {run} {exports} --to huggingface"
    if not project.arguments.exportable:
        export = shlex.join(
            ["groundup", "new", *project.arguments.files, "--name", f"{name}-exportable"]
        )
    own = generate.Arguments(run=str(folder), prompt="Your own beginning", **sampling)
    show_commands(
        "What to try next",
        as_command("generate", own),
        f"groundup train --config {config} --name {name}-longer --minutes 30",
        f"groundup train --from {run} --config {config} --name {name}-more",
        "groundup data sample --kind dialogues --out chats.jsonl",
        f"groundup tune {run} chats.jsonl",
        export,
        "groundup --help",
    )


def _check_time(minutes: float, survey_seconds: float, num_files: int) -> None:
    """Refuse text that takes so long to read that hardly anything is left of the time."""
    # For the vocabulary and for the shards it is read again.
    reading = 3 * survey_seconds
    if reading > _MOST_READING * 60 * minutes:
        raise ConfigError(
            f"{count_of(num_files, 'file')} took {format_duration(survey_seconds)} to read, and "
            f"have to be read twice more: too little of --minutes {minutes:g} is left to train. "
            f"Give --minutes {max(1, round(reading / 60 / _USUAL_READING)):g}"
        )


def _free_name(project: Project) -> str:
    """The name, or with a number the first of which there is no run: none is ever deleted."""
    from groundup.runs.folder import RunFolder

    name, number = project.name, 1
    while RunFolder(project.runs_folder / name).has_run():
        number += 1
        name = f"{project.name}-{number}"
    if number > 1:
        print(f"run {project.name} was trained with other settings and stays; this one is {name}")
    return name


def _describe(survey: "Survey") -> str:
    from groundup.planner.quantities import show_bytes

    about = "" if survey.is_whole else "about "
    documents = count_of(survey.num_documents, "document")
    text = (
        f"{count_of(survey.num_files, 'file')}, {about}{documents}, {show_bytes(survey.num_bytes)}"
    )
    if survey.num_repeated or survey.num_alike:
        text += f"; {survey.num_repeated:,} repeated and {survey.num_alike:,} nearly so"
        text += " (groundup data clean drops them)"
    return text


def _named_after(project: Project) -> str:
    """The input that gives the name if none is given: others may have the same."""
    return path_text(Path(project.arguments.files[0]).resolve())


def _name_of(source: str) -> str:
    """A name for runs and folders from that of a file or folder."""
    stem = Path(source).resolve().name.split(".")[0]
    return re.sub(r"[^A-Za-z0-9._+=-]+", "-", stem).strip("-._+=") or "model"


def _fingerprint(sources: Sequence[Source], arguments: Arguments) -> str:
    """Changes when a file does, by its name, size and time, or an argument that decides."""
    if any(source.path == STDIN for source in sources):
        raise ConfigError("the text is read more than once: save standard input to a file first")
    found = hashlib.sha256()
    for source in sources:
        found.update(
            os.path.normpath(os.fsencode(source)) + f"\0{source.size}, {source.stamp}\0".encode()
        )
    decisive = arguments.model_dump_json(exclude={"files", "name", "max_tokens"})
    found.update(decisive.encode())
    return found.hexdigest()
