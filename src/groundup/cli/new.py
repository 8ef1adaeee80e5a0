"""`groundup new`: from your own text to a model, verb by verb.

Each step is shown as a command that you could type, then run. Running the same command again keeps
finished steps and resumes an interrupted training. The chosen settings are saved as a file.
"""

import contextlib
import hashlib
import io
import json
import os
import re
import shlex
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from groundup.cli.arguments import Positional, as_command
from groundup.cli.more import PREPARED_FOLDER, separator_of
from groundup.cli.shared import RUNS_FOLDER, ReadingFlags, held_warnings, numbered_names
from groundup.cli.terminal import print_table
from groundup.cli.verbs import find_verb
from groundup.config import MAX_STEPS, Seed, Settings, as_yaml, load_settings
from groundup.disk import remove
from groundup.errors import ConfigError, DataError
from groundup.files import is_leftover, parse_json, take_over, write_json_atomic, write_text_atomic
from groundup.runs.config import NAME_PATTERN, RunConfig
from groundup.runs.folder import RunFolder, list_checkpoints
from groundup.runtime import STARTED, count_of, escape_controls
from groundup.text_files import STDIN, Reading, Source, find_sources, path_text

if TYPE_CHECKING:
    from groundup.data.survey import Survey
    from groundup.training.expectation import Outlook

# Reserved for the evaluation and the samples at the end: the smaller of both.
_LAST_FRACTION, _LAST_MINUTES = 0.04, 0.5
_MIN_MINUTES = 0.03
_VALIDATION_BYTES = 300_000
# The largest fraction of the time that reading the text may take.
_MAX_READING = 0.7
# A dry run tokenizes up to this much text to predict the loss.
_MAX_PREVIEW_BYTES = 64_000_000


class MakeFlags(Settings):
    """Flags of `new` and `quickstart`."""

    minutes: float = Field(default=10.0, gt=0, le=10**6)
    """Time budget for everything."""

    vocab_size: int | None = Field(default=None, ge=257, le=10**8)
    """Vocabulary size. Default: chosen from the text and the time."""

    num_steps: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    """Maximum number of training steps."""

    recipe: Literal["exportable", "fastest"] = "exportable"
    """exportable uses only layers that transformers and llama.cpp support. fastest adds gated
attention and value embeddings, which help in long runs; llama.cpp cannot run them, and transformers
needs trust_remote_code."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps; auto picks the fastest available."""

    max_tokens: int = Field(default=200, ge=1, le=10**6)
    """Maximum tokens per sample at the end."""

    seed: Seed = 0
    """Seed of the initial weights and the data order."""


class Arguments(ReadingFlags, MakeFlags):
    """Train a model on your own text: choose settings for the text and this machine, train for some
    minutes, evaluate, and generate."""

    files: Positional[tuple[str, ...]]
    """Files, folders or globs: .txt, .md, .html, source code, .jsonl, .csv, .parquet, .ipynb,
    .docx, .epub, .pdf, .zip, .tar and more, also compressed (.gz, .zst, .xz)."""

    name: str | None = Field(default=None, pattern=NAME_PATTERN, max_length=200)
    """Name of the run in runs/ and of its folder in prepared/ (tokenizer, shards, settings).
Default: derived from FILES."""

    dry_run: bool = False
    """Print the plan and, for up to 64 MB, the loss to expect; write nothing."""

    from_: Path | None = None
    """Start from this model: a run, an export, or a Hugging Face folder of a Llama, SmolLM, Qwen3
or Mistral model. Its tokenizer is used."""


class Project:
    """What to train, on which text, and where the files go."""

    def __init__(
        self,
        arguments: Arguments,
        name: str,
        folder: Path,
        runs_folder: Path = RUNS_FOLDER,
        *,
        prompts: tuple[str, ...] = (),
        source: RunFolder | None = None,
    ) -> None:
        """prompts: of the samples; beginnings of documents if empty. source: the initial model."""
        self.arguments, self.name, self.folder = arguments, name, folder
        self.runs_folder, self.prompts, self.source = runs_folder, prompts, source
        self.config, self.shards = folder / "train.yaml", folder / "shards"
        self.tokenizer = folder / "tokenizer.json" if source is None else source.tokenizer_file

    @property
    def minutes_left(self) -> float:
        """Time for the training, without that of the evaluation and samples at the end."""
        whole = self.arguments.minutes
        passed = (time.monotonic() - STARTED) / 60
        return max(0.01, whole - passed - min(_LAST_MINUTES, _LAST_FRACTION * whole))

    def read_plan(self) -> dict[str, Any]:
        """What an earlier run of the command chose; empty if there was none."""
        try:
            found = parse_json((self.folder / "new.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) and self.config.exists() else {}

    def check(self) -> None:
        """Raise ConfigError before anything is written."""
        load_settings(RunConfig, overrides={"device": self.arguments.device})
        path, file = self.folder, self.arguments.files[0]
        if path.is_dir():
            take_over(path)
        plan = self.read_plan()
        own = {"new.json", "stories.txt", "stories.json", "train.yaml"}
        names = {one.name for one in path.iterdir()} if path.exists() else set[str]()
        if not plan and not {name for name in names if not is_leftover(name)} <= own:
            raise ConfigError(f"folder {path} contains other files: choose another --name")
        made_from = plan.get("named_after", _whole_path(file))
        if self.arguments.name is None and made_from != _whole_path(file):
            raise ConfigError(f"{path} was made from {made_from}; choose another --name")


def run(arguments: Arguments) -> int:
    stem = Path(arguments.files[0]).resolve().name.split(".")[0]
    name = re.sub(r"[^A-Za-z0-9._+=-]+", "-", stem).strip("-._+=") or "model"
    source = None
    if arguments.from_ is not None:
        from groundup.cli.train import find_source

        if arguments.vocab_size is not None:
            raise ConfigError("--from uses that model's tokenizer: remove --vocab-size")
        source = find_source(arguments.from_)
        name = f"{name}-from-{source.path.name}"
    name = arguments.name or name
    return make(Project(arguments, name, PREPARED_FOLDER / name, source=source))


def take_step(
    title: str, verb: str, arguments: Settings, *, is_done: bool = False, **options: Any
) -> int:
    """Print a verb's command line and run it, unless it is done; return its exit status."""
    show_commands(title, as_command(verb, arguments))
    if is_done:
        print("done before, and kept")
        return 0
    return int(find_verb(verb)[1](arguments, **options) or 0)


def show_commands(title: str, *commands: str) -> None:
    print(f"\n{title}", *(f"$ {command}" for command in commands), sep="\n", flush=True)


def make(project: Project) -> int:
    """Run all steps from text to a model; return the exit status."""
    from groundup.cli import train

    project.check()
    arguments = project.arguments
    sources = find_sources(arguments.files, Reading(**arguments.reading), [])
    fingerprint = _fingerprint(sources, arguments)
    show_commands("1  Plan: settings for this text, machine and time")
    plan = project.read_plan()
    if plan.get("fingerprint") == fingerprint:
        print(f"made before, and kept: {project.config}")
    elif arguments.dry_run:
        return _preview(project, sources)
    else:
        plan = _choose_plan(project, sources) | {"fingerprint": fingerprint}
    if arguments.dry_run:
        return 0
    if plan != project.read_plan():
        # The old one was trained on other text or for another vocabulary size.
        if project.source is None:
            remove(project.tokenizer)
        write_json_atomic(project.folder / "new.json", plan)
    _make_shards(project, plan)
    run = RunFolder(project.runs_folder / plan["name"])
    begin = train.Arguments(config=run.config_file, resume=True)
    if not run.has_run():
        steps = {} if arguments.num_steps is None else {"num_steps": arguments.num_steps}
        left = max(_MIN_MINUTES, round(project.minutes_left, 2))
        settings = {"minutes": left, **steps}
        begin = train.Arguments(config=project.config, settings=settings)
    is_done = run.find_state(None, None)[0] == "finished"
    outlook = _find_outlook(project, plan)
    if outlook is not None:
        print(f"\n{outlook.before()}")
    title = "4  Model: trained to predict the next token"
    if status := take_step(title, "train", begin, is_done=is_done, started=time.monotonic()):
        print("or run the same command again: it resumes, then evaluates and generates")
        return status
    if outlook is not None:
        print(f"\n{outlook.after(run)}")
    _look(project, plan)
    return 0


def _preview(project: Project, sources: Sequence[Source]) -> int:
    """Print the plan, and the loss to expect from a tokenizer and shards in a temporary folder."""
    is_small = sum(one.size or 0 for one in sources) <= _MAX_PREVIEW_BYTES
    with tempfile.TemporaryDirectory() as folder:
        trial = Project(project.arguments, project.name, Path(folder), source=project.source)
        plan = _choose_plan(trial, sources)
        if is_small and project.source is None:
            with contextlib.redirect_stdout(io.StringIO()):
                _make_shards(trial, plan)
            outlook = _find_outlook(trial, plan)
            print("too few tokens to predict a loss" if outlook is None else outlook.before())
    return 0


def _make_shards(project: Project, plan: dict[str, Any]) -> None:
    """Train the tokenizer and encode the text."""
    from groundup.cli import data, tokenizer

    files, reading = project.arguments.files, project.arguments.reading
    learn = tokenizer.Train(
        files=files, vocab_size=plan["vocab_size"], out=project.tokenizer, **reading
    )
    title = "2  Tokenizer: the most frequent pairs, merged one by one"
    if project.source is None:
        with held_warnings(are_shown=False):
            take_step(title, "tokenizer train", learn, is_done=project.tokenizer.exists())
    else:
        print(f"\n2  Tokenizer: that of {project.source.path}")
    # Shards older than the tokenizer were made with another one.
    newest = max((path.stat().st_mtime_ns for path in project.shards.glob("*")), default=0)
    separator = {} if project.source is None else {"separator": separator_of(project.source)}
    prepare = data.Prepare(
        **separator,
        files=files,
        tokenizer=project.tokenizer,
        out=project.shards,
        validation_fraction=plan["validation_fraction"],
        overwrite=0 < newest < project.tokenizer.stat().st_mtime_ns,
        **reading,
    )
    title = "3  Shards: the documents as ids, in binary files"
    take_step(title, "data prepare", prepare)


def _choose_plan(project: Project, sources: Sequence[Source]) -> dict[str, Any]:
    """Survey the text, choose settings and write them."""
    from groundup.data.survey import survey_text
    from groundup.planner.quantities import show_bytes

    arguments = project.arguments
    began = time.monotonic()
    with held_warnings(are_shown=False):
        survey = survey_text(sources, **arguments.reading)
    # The vocabulary and the shards read it again.
    reading_minutes = 3 * (time.monotonic() - began) / 60
    recipe, machine, speed = _choose_recipe(project, survey)
    is_short = project.minutes_left - 2 / 3 * reading_minutes < _MIN_MINUTES
    is_short = is_short or reading_minutes > _MAX_READING * arguments.minutes
    if arguments.num_steps is None and is_short:
        raise ConfigError(
            f"starting and reading {count_of(len(sources), 'file')} takes most of --minutes "
            f"{arguments.minutes:g}: give {max(1, round(4 * reading_minutes))}"
        )
    num_bytes, context_length = survey.num_bytes, recipe.model.context_length
    if num_bytes <= context_length:
        raise DataError(
            f"the text has {count_of(num_bytes, 'byte')} and one context {context_length} tokens: "
            f"give more text, 20 kB or more to learn anything general"
        )
    name = numbered_names(project.runs_folder, project.name)[-1]
    if name != project.name:
        print(f"run {project.name} was trained with other settings and stays; this one is {name}")
    prompts = project.prompts or survey.prompts or ("The",)
    values = json.loads(recipe.model_dump_json(exclude_defaults=True))
    # A new model takes it from the shards: a small text may have fewer tokens.
    values["model"].pop("vocab_size", None)
    if project.source is not None:
        values["model"]["vocab_size"] = recipe.model.vocab_size
    data = {"shards": str(project.shards), "tokenizer": str(project.tokenizer)}
    values = {
        "name": name,
        "runs_folder": str(project.runs_folder),
        "seed": arguments.seed,
        "device": arguments.device,
        **values,
        "data": {**data, **values.get("data", {})},
        "samples": {**values.get("samples", {}), "prompts": list(prompts[:1])},
    }
    # A name may contain a newline, after which it would not be a comment.
    files = " ".join(path_text(shlex.join(arguments.files)).splitlines())
    head = f"# What groundup new chose for {escape_controls(files)[:80]}\n\n"
    write_text_atomic(project.config, head + as_yaml(values))
    documents = count_of(survey.num_documents, "document")
    documents = documents if survey.is_whole else f"about {documents}"
    parts = [count_of(survey.num_files, "file"), documents, show_bytes(num_bytes)]
    named = survey.languages.most_common(3)
    total = survey.languages.total()
    parts += [f"{name} {count / total:.0%}" for name, count in named if count > total / 10]
    sizes = recipe.model.num_layers, recipe.model.d_model, recipe.model.vocab_size
    shape = "{} layers of {}, {:,} tokens".format(*sizes)
    lines = [("text", ", ".join(parts)), ("machine", machine), ("model", shape)]
    path = PREPARED_FOLDER / project.name / project.config.name
    title = f"would write {path}" if arguments.dry_run else f"wrote {project.config}"
    print_table(title, (), lines)
    fraction = min(0.1, max(0.002, _VALIDATION_BYTES / num_bytes))
    return {
        "name": name,
        "named_after": _whole_path(arguments.files[0]),
        "vocab_size": recipe.model.vocab_size,
        "prompts": list(prompts),
        "validation_fraction": float(f"{fraction:.2g}"),
        "flops_per_second": speed,
    }


def _choose_recipe(project: Project, survey: "Survey") -> tuple[RunConfig, str, float]:
    """The recipe for this machine's speed, a description of the machine, and its FLOP/s."""
    from groundup.planner import step_flops
    from groundup.planner.quantities import show_flops
    from groundup.training.machine import device_name, find_peak
    from groundup.training.probe import probe_this_machine
    from groundup.training.recipe import GUESSED_UTILIZATION, choose_recipe
    from groundup.training.resolve import resolve_device

    arguments = project.arguments
    device = resolve_device(load_settings(RunConfig, overrides={"device": arguments.device}))
    speed = GUESSED_UTILIZATION * (find_peak(device) or 1e11)
    seconds = max(1.0, project.minutes_left * 60)

    def choose(speed: float) -> RunConfig:
        return choose_recipe(
            flops=speed * seconds,
            num_bytes=survey.num_bytes,
            vocab_size=arguments.vocab_size,
            document_bytes=survey.document_bytes,
            max_steps=arguments.num_steps,
            is_exportable=arguments.recipe == "exportable",
            is_on_cpu=device.device == "cpu",
            source=project.source,
        )

    recipe = choose(speed)
    # MFU depends on the model's size: the measured speed may want another model.
    for _ in range(2):
        config = recipe.model_copy(update={"device": arguments.device})
        probe = probe_this_machine(config)
        per_token = step_flops(config.model, 1) / config.model.context_length
        speed = probe.tokens_per_second * per_token
        before, recipe = recipe, choose(speed)
        if recipe.model == before.model:
            break
    name = device_name(device.device)
    return recipe, f"{name}: {show_flops(speed)} a second in steps of this model", speed


def _find_outlook(project: Project, plan: dict[str, Any]) -> "Outlook | None":
    """The loss to expect, if it can be predicted."""
    from groundup.training.expectation import find_outlook
    from groundup.training.recipe import make_config

    # A grammar generates the quickstart's stories: pair counts predict little about them.
    if project.source is not None or project.prompts:
        return None
    flops = plan["flops_per_second"] * 60 * project.minutes_left
    return find_outlook(make_config({}, file=project.config), flops, project.arguments.num_steps)


def _look(project: Project, plan: dict[str, Any]) -> None:
    """Evaluate, generate, and suggest next commands."""
    from groundup.cli import evaluate, generate
    from groundup.data.shards import read_index

    folder = project.runs_folder / plan["name"]
    older = list_checkpoints(RunFolder(folder).checkpoints)[1:]
    is_best_older = any(one["is_best"] for one in older)
    checkpoint = {"run": str(folder), "checkpoint": "best" if is_best_older else "newest"}
    validation = read_index(project.shards).splits.get("validation")
    if validation is not None and validation.num_tokens > 1:
        title = "5  Evaluation on held-out text"
        take_step(title, "evaluate", evaluate.Arguments(**checkpoint))
    else:
        print("\nNo validation split: the text is too short")
    prompts = plan["prompts"]
    sampling: dict[str, Any] = {"max_tokens": project.arguments.max_tokens, "seed": 1}
    for index, prompt in enumerate(prompts):
        # Three samples in all.
        count = len(range(index, 3, len(prompts)))
        title = "6  Three samples, generated token by token" if index == 0 else ""
        arguments = generate.Arguments(**checkpoint, **sampling, prompt=prompt, num_samples=count)
        take_step(title, "generate", arguments)
    run = shlex.quote(str(folder))
    show_commands("Look at it in a browser", f"groundup serve {run}")
    print("then open http://127.0.0.1:8000; Ctrl-C ends it")
    exports = shlex.quote(str(project.folder / "exports" / plan["name"]))
    own = generate.Arguments(run=str(folder), prompt="Your own beginning", **sampling)
    # The built-in dialogues fit the stories; for other text, show a line to start from.
    sample = ["groundup data sample --kind dialogues --megabytes 0.1 --out chats.jsonl"]
    show_commands(
        "What to try next",
        as_command("generate", own),
        f"groundup more {run} --minutes {project.arguments.minutes:g}",
        *(sample if project.prompts else []),
        f"groundup tune {run} chats.jsonl",
        f"groundup export {run} {exports} --to huggingface",
    )
    if not project.prompts:
        turn = {"role": "user", "content": f"What do you know about: {plan['prompts'][0]}"}
        answer = {"role": "assistant", "content": f"{plan['prompts'][0]} …"}
        line = json.dumps({"messages": [turn, answer]}, ensure_ascii=False)
        print(f"a line of chats.jsonl to start from: {line}")


def _whole_path(file: str) -> str:
    return path_text(Path(file).resolve())


def _fingerprint(sources: Sequence[Source], arguments: Arguments) -> str:
    """A hash of the files (name, size, time) and of the arguments that matter."""
    if any(source.path == STDIN for source in sources):
        raise ConfigError("the text is read more than once: save standard input to a file first")
    files = [(os.path.normpath(one.path), one.size, one.stamp) for one in sources]
    decisive = arguments.model_dump_json(exclude={"files", "name", "max_tokens", "dry_run"})
    return hashlib.sha256(repr((files, decisive)).encode()).hexdigest()
