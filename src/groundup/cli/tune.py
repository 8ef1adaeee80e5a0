"""`groundup tune`: teach a trained model to answer, from conversations; a run like every other."""

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tyro.conf import Positional

from groundup.errors import ConfigError
from groundup.runtime import is_first_rank

if TYPE_CHECKING:
    from groundup.runs.config import RunConfig

# The settings that have a flag of their own, named as their last part is.
_FLAG_SETTINGS = (
    "tuning.chats",
    "tuning.lora_rank",
    "tuning.template",
    "tuning.validation_fraction",
    "num_steps",
    "optimizer.learning_rate",
    "batch_size",
    "model.context_length",
    "seed",
    "device",
)

# Measured on a small model; the wider a model, the less of it is used, as others found.
_LEARNING_RATE, _WIDTH, _WIDTH_POWER = 3e-3, 128, 1.5
# Adapters want more than all weights do.
_ADAPTER_FACTOR = 5

# The settings of every such run, counted for 100 steps and scaled to as many as there are.
_DEFAULTS: dict[str, Any] = {
    "num_steps": 100,
    "optimizer.weight_decay": 0.0,
    "schedule.name": "linear",
    "schedule.warmup_steps": 5,
    "schedule.min_learning_rate_ratio": 0.0,
    "evaluation.every_steps": 25,
    "checkpoints.every_steps": 25,
    "checkpoints.keep_last": 1,
    "logging.every_steps": 5,
}


@dataclass(frozen=True)
class Arguments:
    """Tune a trained model on conversations, so that it answers.

    Only the answers are learned. The new run begins with the weights of RUN and gets its tokenizer
    with a chat template; it is generated with, served, evaluated, exported and resumed as any run.
    """

    run: Positional[str]
    """The run to begin with: its folder, or its name under runs."""

    chats: Positional[tuple[str, ...]]
    """Conversations, JSON lines, also compressed: {"messages": [{"role", "content"}, …]}, or
    {"prompt", "completion"}."""

    name: str | None = None
    """Name of the new run, beside the other; by default that one's with -chat at its end."""

    num_steps: int | None = None
    """Optimizer steps to take; as many as --epochs need if not given."""

    epochs: float = 3.0
    """How often every conversation is seen."""

    lora_rank: int | None = None
    """Learn low-rank adapters of this rank instead of all weights; everything that opens the run
    sees them merged."""

    learning_rate: float | None = None
    """The maximum learning rate; if not given, 3e-3 up to a d_model of 128, less for wider
    models, and five times that for adapters."""

    batch_size: int | None = None
    """Rows of packed conversations in one step; 8 if not given, fewer where there are few."""

    context_length: int | None = None
    """Tokens the model sees at once; longer conversations lose their end. That of RUN if not
    given."""

    validation_fraction: float | None = None
    """The fraction of the conversations to hold out for validation; 0.05 if not given."""

    template: Path | None = None
    """A file with the chat template in Jinja; that of the tokenizer, or ChatML, if not given."""

    config: Path | None = None
    """A YAML file of further settings, as groundup train takes them; flags go before it."""

    seed: int | None = None
    """Seed of the data order and of the adapters; 0 if not given."""

    device: str | None = None
    """auto, cpu, cuda, cuda:N or mps; the fastest there is if not given."""

    resume: bool = False
    """Resume the new run from its newest checkpoint."""

    allow_changes: bool = False
    """Resume although settings differ from those the run began with."""


def run(arguments: Arguments) -> int:
    """Tune and print the results; a signal that stopped the run decides the exit status."""
    from groundup.cli.shared import find_run
    from groundup.cli.train import train_run
    from groundup.training.tuning import choose_epochs

    if not arguments.chats:
        raise ConfigError("groundup tune needs CHATS, a file of conversations: see its --help")
    if not 0 < arguments.epochs < math.inf:
        raise ConfigError(f"--epochs must be more than 0, got {arguments.epochs:g}")
    source = find_run(arguments.run)
    try:
        config, chosen = _settings(arguments, source)
    except ConfigError as error:
        raise ConfigError(_with_flags(str(error))) from error
    choose = functools.partial(choose_epochs, num_epochs=arguments.epochs, chosen=chosen)
    status = train_run(
        config,
        "tuning",
        resume=arguments.resume,
        allow_changes=arguments.allow_changes,
        choose_length=choose,
    )
    if status == 0 and is_first_rank():
        print(f'talk to it: groundup generate {config.run_folder} --chat --prompt "Hello!"')
        print(f"in a browser: groundup serve {config.run_folder}")
    return status


def _settings(arguments: Arguments, source: Path) -> "tuple[RunConfig, tuple[str, ...]]":
    """The new run, and the settings in it that flags or the file decide."""
    from groundup.config import flatten, load_settings, load_yaml
    from groundup.runs.config import RunConfig, scaled_steps
    from groundup.runs.folder import RunFolder

    given = _given(arguments)
    name = arguments.name or f"{source.name}-chat"
    folder = source.parent / name
    if arguments.resume:
        run = RunFolder(folder)
        file = run.config_file if run.has_run() else None
        return load_settings(RunConfig, file, {**_place(folder), **given}), ()
    in_file = dict(flatten(load_yaml(arguments.config))) if arguments.config else {}
    chosen = {**in_file, **given}
    model = _model_of(source, arguments.template)
    is_adapted = chosen.get("tuning.lora_rank") is not None
    values = {
        **_DEFAULTS,
        "optimizer.learning_rate": _learning_rate(model["model.d_model"], is_adapted=is_adapted),
        **model,
        **chosen,
        **_place(folder),
        "start_from": source,
    }
    config = load_settings(RunConfig, None, values)
    if "num_steps" in chosen:
        base = load_settings(RunConfig, None, {**values, "num_steps": _DEFAULTS["num_steps"]})
        steps = scaled_steps(base, config.num_steps, tuple(chosen))
        config = load_settings(RunConfig, None, {**values, **steps})
    return config, tuple(chosen)


def _given(arguments: Arguments) -> dict[str, Any]:
    """The settings that flags decide, by dotted name."""
    values = {name: getattr(arguments, name.rpartition(".")[2]) for name in _FLAG_SETTINGS}
    return {name: value for name, value in values.items() if value is not None}


def _with_flags(message: str) -> str:
    """What is wrong with a setting, under the name of its flag."""
    for name in _FLAG_SETTINGS:
        flag = "--" + name.rpartition(".")[2].replace("_", "-")
        message = message.replace(f"{name} is ", f"{flag} is ")
    return message


def _learning_rate(d_model: int, *, is_adapted: bool) -> float:
    """In two digits."""
    rate = _LEARNING_RATE * min(1.0, _WIDTH / d_model) ** _WIDTH_POWER
    return float(f"{rate * (_ADAPTER_FACTOR if is_adapted else 1):.1e}")


def _place(folder: Path) -> dict[str, Any]:
    return {"name": folder.name, "runs_folder": folder.parent}


def _model_of(source: Path, template: Path | None) -> dict[str, Any]:
    """The model of a run, with a vocabulary that has room for the tokens of the template."""
    from groundup.cli.train import settings_from
    from groundup.runs.folder import RunFolder
    from groundup.tokenizer import Tokenizer
    from groundup.training.tuning import with_template

    values = settings_from(source)
    tokenizer = with_template(Tokenizer.load(RunFolder(source).tokenizer_file), template)
    if tokenizer.vocab_size > values["model.vocab_size"]:
        # Matmuls on GPUs want rows of 16 bytes.
        values["model.vocab_size"] = -(-tokenizer.vocab_size // 8) * 8
    return values
