"""`groundup train`: train a run, or resume one; every setting of it is a flag.

Settings come from their defaults, then the YAML file, then the flags.
"""

import contextlib
import itertools
import os
import re
import signal
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from groundup.cli.arguments import FlagsOf
from groundup.cli.shared import RUNS_FOLDER, numbered_names
from groundup.cli.terminal import print_values
from groundup.config import Settings, load_settings, load_yaml, setting_fields
from groundup.disk import make_folder
from groundup.errors import ConfigError
from groundup.files import locked
from groundup.model.config import ModelConfig
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runtime import STARTED, is_first_rank

if TYPE_CHECKING:
    from groundup.model import TransformerLM
    from groundup.tokenizer import Tokenizer
    from groundup.training.metrics import Callback


MODEL_SETTINGS = tuple(name for name, _ in setting_fields(ModelConfig, "model."))


class TrainingFlags(Settings):
    """The settings of a run, and whether it is resumed."""

    config: Path | None = None
    """Settings file (YAML); flags override it. Without one, a resume uses the run's own
settings."""

    resume: bool = False
    """Resume the run --name from its newest checkpoint."""

    allow_changes: bool = False
    """Allow settings to differ from the run's when resuming."""

    common: ClassVar = (
        *("name", "minutes", "num_steps", "epochs", "batch_size", "seed", "device"),
        *("data.shards", "model.d_model", "model.num_layers", "model.num_heads"),
        *("model.context_length", "optimizer.name", "optimizer.learning_rate", "schedule.name"),
        "samples.prompts",
    )

    settings: Annotated[dict[str, Any], FlagsOf(RunConfig)] = Field(default_factory=dict)


class Arguments(TrainingFlags):
    """Train a model on shards, or resume a run that was stopped.

    Settings come from their defaults, then the --config file, then flags. Without a file they are
    chosen for the shards and about ten minutes (or --minutes) of this machine. The vocabulary size
    comes from the shards unless it is set."""

    from_: Path | None = None
    """Start from the weights, model settings and tokenizer of this run or export.
--model.context-length may be longer and --model.vocab-size larger."""


def run(arguments: Arguments, started: float | None = None) -> int:
    started = STARTED if started is None else started
    return train_run(settings_of(arguments), "training", arguments, started)


def settings_of(arguments: Arguments) -> RunConfig:
    """Settings from a file, the run to resume, or a recipe, with the flags on top."""
    given, file, source = arguments.settings, arguments.config, arguments.from_
    in_file = {} if file is None else load_yaml(file)
    runs_folder = Path(str(given.get("runs_folder") or in_file.get("runs_folder") or RUNS_FOLDER))
    start = None
    if source is not None and "name" not in {**in_file, **given}:
        start = find_source(source, runs_folder)
        name = continued_name(start, runs_folder, is_resumed=arguments.resume)
        given = {**given, "name": name}
    is_resumed = file is None and "name" in given and (arguments.resume or _is_restarted())
    if is_resumed and (run := RunFolder(runs_folder / given["name"])).has_run():
        began = load_yaml(run.config_file).get("start_from")
        # Compared by name, because it may have moved; an import's name has a suffix.
        if source is not None and not Path(began or "").name.startswith(source.resolve().name):
            raise ConfigError(
                f"{run.path} started from {began or 'new weights'}, not from --from {source}: "
                f"remove --from, or start another run with another --name"
            )
        return load_settings(RunConfig, run.config_file, given)
    from groundup.training.recipe import make_config

    if start is None and source is not None:
        start = find_source(source, runs_folder)
    return make_config(given, file=file, source=start)


def train_run(
    config: RunConfig, label: str, flags: TrainingFlags, started: float | None = None
) -> int:
    """Train with a progress bar and print the results on rank 0; return 0, or 128 + the signal that
    stopped the run. A run that torchrun restarts continues from its newest checkpoint.
    """
    may_be_restarted = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
    if config.name is None and (flags.resume or may_be_restarted):
        raise ConfigError(
            "a run to resume, or one that torchrun may restart, needs a name: add --name RUN, or a "
            "--config with one"
        )
    run = RunFolder(config.run_folder) if config.name is not None else None
    outcome = None if run is None or not flags.resume else run.read_outcome()
    is_longer = "minutes" in flags.settings and config.minutes is not None
    if outcome is not None and outcome.state == "finished" and is_longer:
        raise ConfigError(
            f"the run in {config.run_folder} has used its minutes: continue it with groundup more "
            f"{config.run_folder} --minutes {config.minutes:g}"
        )
    resume = flags.resume or (_is_restarted() and RunFolder(config.run_folder).has_run())
    from groundup.cli.terminal import progress_bar
    from groundup.training import train
    from groundup.training.clock import Clock
    from groundup.training.metrics import AfterStep

    with progress_bar(label) as progress:
        bar = AfterStep(lambda step, fraction: progress(round(1_000 * fraction), 1_000))
        summary = train(
            config,
            resume=resume,
            allow_changes=flags.allow_changes,
            callbacks=[bar, sampler(config)],
            clock=Clock(began=started),
        )
    if is_first_rank():
        print_values(str(summary.run_folder), asdict(summary) | {"run_folder": None})
        if config.continue_training and summary.is_finished:
            print(_describe_change(RunFolder(summary.run_folder), config.start_from))
    return 0 if summary.stopped_by is None else 128 + signal.Signals[summary.stopped_by]


def _describe_change(run: RunFolder, start_from: Path | None) -> str:
    """The change in validation loss since the first step."""
    from groundup.runs.metrics_file import read_metrics

    metrics = read_metrics(run.metrics_file)
    before, best = metrics.at("validation_loss", 0), metrics.lowest("validation_loss")
    if before is None or best is None:
        return "no validation split, so no measure of the change"
    if best[1] == 0:
        weights = f"so the weights of {start_from} are kept"
        return f"validation stays at {before:.3f}: no step lowered it, {weights}"
    return f"validation {before:.3f} → {best[0]:.3f}"


def sampler(config: RunConfig) -> "Callback":
    """The callback that generates samples during training."""
    from groundup.generation import LanguageModel
    from groundup.training.machine import not_compiled
    from groundup.training.metrics import Callback

    class Sampler(Callback):
        def sample(self, model: "TransformerLM", tokenizer: "Tokenizer", prompt: str) -> str | None:
            names = {"max_tokens", "temperature", "top_p", "seed"}
            # A prompt that the model rejects does not end the run.
            with not_compiled(), contextlib.suppress(ConfigError):
                options = config.samples.model_dump(include=names)
                return LanguageModel(model, tokenizer).generate(prompt, **options)
            return None

    return Sampler()


def continued_name(source: RunFolder, folder: Path, *, is_resumed: bool) -> str:
    """RUN-more, RUN-more-2, …: the next free name; a resume means the latest of these runs."""
    names = numbered_names(folder, re.sub(r"-more(-\d+)?$", "", source.path.name) + "-more")
    return names[-2:][0] if is_resumed or _is_restarted() else names[-1]


def find_source(source: Path, runs_folder: Path = RUNS_FOLDER) -> RunFolder:
    """The run to start from: a folder, the name of a run, or an export. An export is imported into
    `runs_folder` once; its import is reused unless it has been trained since."""
    for run in (RunFolder(source), RunFolder(runs_folder / source)):
        if run.has_run():
            return run
    if not (source / "config.json").is_file():
        raise ConfigError(
            f"--from {source}: neither a run folder with a config.yaml nor an export with a "
            f"config.json is there, nor a run of that name in {runs_folder}"
        )
    from groundup.interop import import_huggingface
    from groundup.interop.huggingface import is_import_of

    make_folder(runs_folder)
    # Ranks started by torchrun get here concurrently, before the process group exists.
    with locked(runs_folder, wait=True):
        for number in itertools.count(1):
            name = f"{source.resolve().name}-imported" + (f"-{number}" if number > 1 else "")
            run = RunFolder(runs_folder / name)
            if not run.path.exists():
                import_huggingface(source, name, runs_folder=runs_folder)
                print(f"imported {source} as {run.path}")
                break
            if is_import_of(source, run):
                break
    return run


def _is_restarted() -> bool:
    """Whether torchrun has restarted the ranks after losing one."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
