"""`groundup train`: train a run, or resume one; every setting of it is a flag.

Settings come from their defaults, then the YAML file, then the flags.
"""

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from groundup.cli.arguments import FlagsOf
from groundup.cli.shared import RUNS_FOLDER
from groundup.config import Settings, load_settings, load_yaml
from groundup.errors import ConfigError
from groundup.files import locked
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runtime import is_first_rank, process_start

if TYPE_CHECKING:
    from groundup.model import TransformerLM
    from groundup.tokenizer import Tokenizer
    from groundup.training import TrainSummary
    from groundup.training.callbacks import Callback

# A run that was imported has the name of its export, this, and a number if it is not the first.
_IMPORTED = "-imported"


class Arguments(Settings):
    """Train a model on shards, or resume a run that was stopped.

    The settings below come from their defaults, then the file given with --config, then flags.
    Without a file they fit the shards and about ten minutes of this machine, or --minutes. The size
    of the vocabulary comes from the shards, if neither gives it.
    """

    config: Path | None = None
    """A YAML file of settings. A resume without one takes those the run was last trained with."""

    resume: bool = False
    """Resume the run called --name from its newest checkpoint."""

    from_: Path | None = None
    """Begin with the weights of this run or export, with its model settings and its tokenizer, and
    a schedule of its own. A longer --model.context-length and a larger --model.vocab-size are
    possible."""

    allow_changes: bool = False
    """Resume although settings differ from those the run began with."""

    settings: Annotated[dict[str, Any], FlagsOf(RunConfig)] = Field(default_factory=dict)


def run(arguments: Arguments, started: float | None = None) -> int:
    """Train and print the results; a signal that stopped the run decides the exit status.

    started: what --minutes counts from, as time.monotonic tells it; the process if None.
    """
    config = settings_of(arguments)
    if arguments.resume and config.name is None:
        raise ConfigError(
            "--resume needs the name of the run: add --name RUN, or a --config that has one"
        )
    return train_run(
        config,
        "training",
        resume=arguments.resume,
        allow_changes=arguments.allow_changes,
        started=process_start() if started is None else started,
    )


def settings_of(arguments: Arguments) -> RunConfig:
    """The settings of the run: of a file, the run to resume, or a recipe, and then of flags."""
    given, file = arguments.settings, arguments.config
    in_file = {} if file is None else load_yaml(file)
    runs_folder = Path(str(given.get("runs_folder") or in_file.get("runs_folder") or RUNS_FOLDER))
    is_resumed = file is None and "name" in given and (arguments.resume or _is_restarted())
    if is_resumed and (run := RunFolder(runs_folder / given["name"])).has_run():
        if arguments.from_ is not None:
            _check_start(arguments.from_, load_yaml(run.config_file).get("start_from"))
        return load_settings(RunConfig, run.config_file, given)
    from groundup.training.settings import make_config

    source = None if arguments.from_ is None else find_source(arguments.from_, runs_folder)
    return make_config(given, file=file, source=source)


def train_run(
    config: RunConfig,
    label: str,
    *,
    resume: bool,
    allow_changes: bool,
    started: float | None = None,
) -> int:
    """Train with a progress bar and print the results, on the first rank; gives the exit status.

    A run that torchrun starts again goes on from its newest checkpoint. `started` is what minutes
    count from.
    """
    if _may_be_restarted() and config.name is None:
        raise ConfigError(
            "torchrun may restart this run and has to find it again: add --name RUN, or a --config "
            "that has one"
        )
    resume = resume or (_is_restarted() and RunFolder(config.run_folder).has_run())
    from groundup.cli.terminal import progress_bar
    from groundup.training import train
    from groundup.training.callbacks import AfterStep
    from groundup.training.clock import Clock

    with progress_bar(label, unit="‰") as progress:
        bar = AfterStep(lambda step, fraction: progress(round(1_000 * fraction), 1_000))
        summary = train(
            config,
            resume=resume,
            allow_changes=allow_changes,
            callbacks=[bar, sampler(config)],
            clock=Clock(began=started),
        )
    if is_first_rank():
        _print_summary(summary)
    return 0 if summary.stopped_by is None else 128 + signal.Signals[summary.stopped_by]


def sampler(config: RunConfig) -> "Callback":
    """What generates the samples of a run while it trains."""
    from groundup.generation import LanguageModel
    from groundup.training.callbacks import Callback
    from groundup.training.execution import not_compiled

    class Sampler(Callback):
        def sample(self, model: "TransformerLM", tokenizer: "Tokenizer", prompt: str) -> str:
            samples = config.samples
            with not_compiled():
                return LanguageModel(model, tokenizer).generate(
                    prompt,
                    max_tokens=samples.max_tokens,
                    temperature=samples.temperature,
                    top_p=samples.top_p,
                    seed=samples.seed,
                    past_context="slide",
                )

    return Sampler()


def find_source(source: Path, runs_folder: Path = RUNS_FOLDER) -> RunFolder:
    """The run that another one begins with: a folder, the name of a run, or an export, which is
    imported into `runs_folder`."""
    runs = (RunFolder(folder) for folder in (source, runs_folder / source))
    run = next((run for run in runs if run.has_run()), None)
    if run is None and (source / "config.json").is_file():
        run = _imported(source, runs_folder)
    if run is None:
        raise ConfigError(
            f"--from {source}: neither a run folder with a config.yaml nor an export with a "
            f"config.json is there, nor a run of that name in {runs_folder}"
        )
    return run


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


def _is_restarted() -> bool:
    """Has torchrun started the ranks again, after one of them was lost?"""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def _may_be_restarted() -> bool:
    return os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"


def _print_summary(summary: "TrainSummary") -> None:
    """Print how a run ended, as a table."""
    from groundup.cli.terminal import print_results
    from groundup.runtime import format_duration

    whole = "" if summary.num_steps is None else f" of {summary.num_steps:,}"
    results = [
        ("steps", f"{summary.steps:,}{whole}"),
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
