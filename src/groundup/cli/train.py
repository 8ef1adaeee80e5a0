"""`groundup train`: train a run, or resume one; every setting of it is a flag.

Settings come from their defaults, then the YAML file, then the flags.
"""

import contextlib
import math
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from tyro.conf import Fixed, Suppress

from groundup.cli.flags import flag_of, is_on, value_of
from groundup.cli.shared import RUNS_FOLDER
from groundup.config import flatten, load_settings, load_yaml
from groundup.errors import ConfigError
from groundup.files import locked
from groundup.runs.config import COUNTED_IN_STEPS, DataConfig, RunConfig
from groundup.runs.folder import RunFolder
from groundup.runtime import is_first_rank, process_start

if TYPE_CHECKING:
    from groundup.data.shards import ShardIndex
    from groundup.model import TransformerLM
    from groundup.tokenizer import Tokenizer
    from groundup.training import TrainSummary
    from groundup.training.budget import TimeBudget
    from groundup.training.run_data import RunData

# What the settings of a run without a file and without --minutes are chosen for.
_USUAL_MINUTES = 10.0
# A run that was imported has the name of its export, this, and a number if it is not the first.
_IMPORTED = "-imported"


@dataclass(frozen=True)
class Arguments:
    """Train a model on shards, or resume a run that was stopped.

    The settings below come from their defaults, then the file given with --config, then flags.
    Without a file they fit the shards and about ten minutes of this machine, or --minutes. The size
    of the vocabulary comes from the shards, if neither gives it.
    """

    config: Path | None = None
    """A YAML file of settings. A resume without one takes those the run was last trained with."""

    resume: bool = False
    """Resume the run called --name from its newest checkpoint."""

    from_: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """Begin with the weights of this run or export, with its model settings and its tokenizer, and
    a schedule of its own. A longer --model.context-length and a larger --model.vocab-size are
    possible."""

    allow_changes: bool = False
    """Resume although settings differ from those the run began with."""

    minutes: float | None = None
    """Train for this long, from the start of the command to its last line: steps are timed on this
    machine and the number of steps follows, at most --num-steps if that is given. Settings counted
    in steps keep their fraction of the run, except those given as flags."""

    settings: Annotated[RunConfig, tyro.conf.arg(name="")] = field(default_factory=RunConfig)

    given_flags: Suppress[Fixed[tuple[str, ...]]] = ()
    """The settings counted in steps that the command line sets, by dotted name."""

    measured: Suppress[Fixed[tuple[str, ...]]] = ()
    """The settings that were chosen by measuring this machine."""


def defaults(argv: Sequence[str]) -> Arguments:
    """What the flags start from: the settings file's values, where one is given."""
    from groundup.data.shards import find_index

    resumed = _file_of_resumed_run(argv)
    file = value_of("--config", argv) or resumed
    counts = ("num_steps", *COUNTED_IN_STEPS)
    given = tuple(name for name in counts if value_of(flag_of(name), argv) is not None)
    in_file = dict(flatten(load_yaml(file))) if file is not None else {}
    source = value_of("--from", argv)
    named = value_of("--runs-folder", argv) or in_file.get("runs_folder")
    runs_folder = Path(str(named or RUNS_FOLDER))
    found: dict[str, Any] = {}
    if source is not None and file is not None and file == resumed:
        _check_start(Path(source), in_file.get("start_from"))
    elif source is not None:
        found = settings_from(Path(source), runs_folder)
    # Where there are none to be read, training says what is wrong with them.
    index = None if "model.vocab_size" in found else find_index(_find_shards(argv, in_file))
    measured: dict[str, Any] = {}
    if index is not None:
        if file is None and not {"-h", "--help"} & set(argv):
            measured = _recipe_for(index, argv)
        found |= measured | {"model.vocab_size": index.vocab_size}
    overrides = {name: value for name, value in found.items() if name not in in_file}
    settings = load_settings(RunConfig, file, overrides)
    return Arguments(settings=settings, given_flags=given, measured=tuple(measured))


def run(arguments: Arguments, started: float | None = None) -> int:
    """Train and print the results; a signal that stopped the run decides the exit status.

    started: what --minutes counts from, as time.monotonic tells it; the process if None.
    """
    config = arguments.settings
    if arguments.resume and config.name is None:
        raise ConfigError(
            "--resume needs the name of the run: add --name RUN, or a --config that has one"
        )
    budget = _budget(arguments, process_start() if started is None else started)
    return train_run(
        config,
        "training",
        resume=arguments.resume,
        allow_changes=arguments.allow_changes,
        budget=budget,
        measured=arguments.measured,
    )


def train_run(
    config: RunConfig,
    label: str,
    *,
    resume: bool,
    allow_changes: bool,
    budget: "TimeBudget | None" = None,
    choose_length: "Callable[[RunConfig, RunData], RunConfig] | None" = None,
    measured: tuple[str, ...] = (),
) -> int:
    """Train with a progress bar and print the results, on the first rank; gives the exit status.

    A run that torchrun starts again goes on from its newest checkpoint.

    config: of the run.
    label: what the bar calls it.
    resume, allow_changes, budget, choose_length, measured: as `train` takes them; a resume has its
        length.
    """
    if _may_be_restarted() and config.name is None:
        raise ConfigError(
            "torchrun may restart this run and has to find it again: add --name RUN, or a --config "
            "that has one"
        )
    resume = resume or (_is_restarted() and RunFolder(config.run_folder).has_run())
    from groundup.cli.terminal import progress_bar
    from groundup.training import train

    with progress_bar(label, unit="steps") as progress:
        summary = train(
            config,
            resume=resume,
            allow_changes=allow_changes,
            write_sample=sample_writer(config),
            progress=progress,
            budget=budget,
            choose_length=None if resume else choose_length,
            measured=measured,
        )
    if is_first_rank():
        _print_summary(summary)
    return 0 if summary.stopped_by is None else 128 + signal.Signals[summary.stopped_by]


def sample_writer(config: RunConfig) -> "Callable[[TransformerLM, Tokenizer, str], str]":
    """What training calls to sample a continuation of a prompt."""

    def write_sample(model: "TransformerLM", tokenizer: "Tokenizer", prompt: str) -> str:
        from groundup.generation import LanguageModel
        from groundup.training.likelihood import not_compiled

        samples = config.samples
        language_model = LanguageModel(model, tokenizer)
        with not_compiled():
            return language_model.generate(
                prompt,
                max_tokens=samples.max_tokens,
                temperature=samples.temperature,
                top_p=samples.top_p,
                seed=samples.seed,
                past_context="slide",
            )

    return write_sample


def _budget(arguments: Arguments, started: float) -> "TimeBudget | None":
    """The time that --minutes gives."""
    minutes = arguments.minutes
    if minutes is None:
        return None
    from groundup.training.budget import TimeBudget

    if not 0 < minutes < math.inf:
        raise ConfigError(f"--minutes must be more than 0, got {minutes:g}")
    max_steps = arguments.settings.num_steps if "num_steps" in arguments.given_flags else None
    return TimeBudget(60 * minutes, started, arguments.given_flags, max_steps)


def _find_shards(argv: Sequence[str], in_file: Mapping[str, Any]) -> Path:
    """The folder of shards, or the first of a mix, as flags or the settings file name it."""
    mixed = value_of("--data.mix", argv)
    if mixed is None:
        listed = in_file.get("data.mix")
        listed = listed if isinstance(listed, list) else ()
        named = (name.removeprefix("data.mix.") for name in in_file if name.startswith("data.mix."))
        mixed = next(iter(listed), None) or next(named, None)
    first = None if mixed is None else str(mixed).rpartition("=")[0] or str(mixed)
    shards = value_of("--data.shards", argv) or in_file.get("data.shards")
    return Path(str(shards or first or DataConfig().shards))


def _recipe_for(index: "ShardIndex", argv: Sequence[str]) -> dict[str, Any]:
    """What a run without a settings file starts from: sizes that fit the data and the time."""
    from groundup.training.execution import find_peak, resolve_device
    from groundup.training.recipe import GUESSED_UTILIZATION, choose_recipe

    device = value_of("--device", argv) or "auto"
    minutes = _number(value_of("--minutes", argv)) or _USUAL_MINUTES
    try:
        config = resolve_device(load_settings(RunConfig, overrides={"device": device}))
    except ConfigError:
        # Training says what is wrong with it.
        return {}
    speed = GUESSED_UTILIZATION * (find_peak(config) or 1e11)
    d_model, num_steps = (
        _number(value_of(name, argv)) for name in ("--model.d-model", "--num-steps")
    )
    split = index.splits["train"]
    recipe = choose_recipe(
        flops=speed * 60 * minutes,
        num_tokens=max(1, split.num_ids),
        vocab_size=index.vocab_size,
        d_model=None if d_model is None else int(d_model),
        document_bytes=split.num_bytes // max(1, split.num_documents),
        max_steps=None if num_steps is None else int(num_steps),
        is_on_cpu=config.device == "cpu",
    )
    values = recipe.config.model_dump(exclude_defaults=True)
    values.pop("samples", None)
    if value_of("--optimizer.name", argv) not in (None, recipe.config.optimizer.name):
        # Its rates suit no other.
        del values["optimizer"]
    return dict(flatten(values))


def _number(text: str | None) -> float | None:
    """A number that makes sense; None for what the parser of flags will refuse."""
    with contextlib.suppress(TypeError, ValueError):
        number = float(text)  # type: ignore[arg-type]
        return number if 1e-6 < number < 1e6 else None
    return None


def settings_from(source: Path, runs_folder: Path = RUNS_FOLDER) -> dict[str, Any]:
    """What a run takes over from a run or export, by dotted name.

    source: its folder, or the name of a run.
    runs_folder: where runs have names, and an export is imported to.
    """
    runs = (RunFolder(folder) for folder in (source, runs_folder / source))
    run = next((run for run in runs if run.has_run()), None)
    if run is None and (source / "config.json").is_file():
        run = _imported(source, runs_folder)
    if run is None:
        raise ConfigError(
            f"--from {source}: neither a run folder with a config.yaml nor an export with a "
            f"config.json is there, nor a run of that name in {runs_folder}"
        )
    model = run.read_config().model
    values: dict[str, Any] = {"start_from": run.path, "data.tokenizer": run.tokenizer_file}
    values |= {f"model.{name}": value for name, value in model.model_dump().items()}
    # The rule for it depends on vocab_size, which may grow.
    values["model.embedding_scale"] = model.input_scale
    return values


def _check_start(source: Path, start: str | None) -> None:
    """Refuse to resume a run that began with something else: by its name, for it may have moved.

    source: what --from names.
    start: what the run began with.
    """
    name, began = source.resolve().name, start and Path(start).resolve().name
    if began is None or not (began == name or began.startswith(f"{name}{_IMPORTED}")):
        raise ConfigError(
            f"--resume goes on with a run that began with {start or 'weights of its own'}, not "
            f"with --from {source}: leave --from out, or begin another run by another --name"
        )


def _imported(export: Path, runs_folder: Path) -> RunFolder:
    """The run folder made from a checkpoint of other tools, now or before.

    A run that came from another one of that name, or was trained since, stays as it is.
    """
    from groundup.interop import import_huggingface
    from groundup.interop.huggingface_import import is_import_of

    first = name = f"{export.resolve().name}{_IMPORTED}"
    number = 1
    runs_folder.mkdir(parents=True, exist_ok=True)
    # The ranks that torchrun starts come here at once, before they know of each other.
    with locked(runs_folder, wait=True):
        while (run := RunFolder(runs_folder / name)).path.exists():
            if is_import_of(export, run):
                return run
            number += 1
            name = f"{first}-{number}"
        import_huggingface(export, name, runs_folder=runs_folder)
    print(f"imported {export} as {run.path}")
    return run


def _file_of_resumed_run(argv: Sequence[str]) -> Path | None:
    """The settings a run was last trained with, when it is to be resumed by its name alone."""
    name = value_of("--name", argv)
    if name is None or not (is_on("--resume", argv) or _is_restarted()):
        return None
    folder = Path(value_of("--runs-folder", argv) or RUNS_FOLDER)
    run = RunFolder(folder / name)
    return run.config_file if run.has_run() else None


def _is_restarted() -> bool:
    """Has torchrun started the ranks again, after one of them was lost?"""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def _may_be_restarted() -> bool:
    return os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"


def _print_summary(summary: "TrainSummary") -> None:
    """Print how a run ended, as a table."""
    from groundup.cli.terminal import print_results
    from groundup.runtime import format_duration

    results = [
        ("steps", f"{summary.steps:,} of {summary.num_steps:,}"),
        ("tokens", f"{summary.tokens:,}"),
        ("time", format_duration(summary.wall_seconds)),
    ]
    if summary.num_skipped:
        results.append(("skipped steps", f"{summary.num_skipped:,}"))
    for name, value in (
        ("loss", summary.loss),
        ("validation loss", summary.validation_loss),
        ("best validation loss", summary.best_validation_loss),
        ("bits per byte", summary.bits_per_byte),
    ):
        if value is not None:
            results.append((name, f"{value:.4f}"))
    print_results(str(summary.run_folder), results)
