"""`groundup tune`: teach a trained model to answer, from conversations; a run like every other."""

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field
from tyro.conf import Positional

from groundup.config import MAX_STEPS, Seed, Settings
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


class Arguments(Settings):
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

    num_steps: int | None = Field(None, ge=1, le=MAX_STEPS)
    """Optimizer steps to take; as many as --epochs need if not given."""

    epochs: float = Field(3.0, gt=0, le=10**6)
    """How often every conversation is seen."""

    lora_rank: int | None = Field(None, ge=1, le=2**16)
    """Learn low-rank adapters of this rank instead of all weights; everything that opens the run
    sees them merged."""

    learning_rate: float | None = Field(None, gt=0)
    """The maximum learning rate; if not given, 3e-3 up to a d_model of 128, less for wider
    models, and five times that for adapters."""

    batch_size: int | None = Field(None, ge=1, le=10**7)
    """Rows of packed conversations in one step; 8 if not given, fewer where there are few."""

    context_length: int | None = Field(None, ge=1)
    """Tokens the model sees at once; longer conversations lose their end. That of RUN if not
    given."""

    validation_fraction: float | None = Field(None, ge=0, le=0.5)
    """The fraction of the conversations to hold out for validation; 0.05 if not given."""

    template: Path | None = None
    """A file with the chat template in Jinja; that of the tokenizer, or ChatML, if not given."""

    config: Path | None = None
    """A YAML file of further settings, as groundup train takes them; flags go before it."""

    seed: Seed | None = None
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

    config = _settings(arguments, find_run(arguments.run))
    status = train_run(
        config, "tuning", resume=arguments.resume, allow_changes=arguments.allow_changes
    )
    if status == 0 and is_first_rank():
        print(f'talk to it: groundup generate {config.run_folder} --chat --prompt "Hello!"')
        print(f"in a browser: groundup serve {config.run_folder}")
    return status


def _settings(arguments: Arguments, source: Path) -> "RunConfig":
    """The settings of the new run, beside the other."""
    from groundup.config import flatten, load_settings, load_yaml
    from groundup.runs.config import RunConfig
    from groundup.runs.folder import RunFolder
    from groundup.training.tuning import tuning_config

    given = {name: getattr(arguments, name.rpartition(".")[2]) for name in _FLAG_SETTINGS}
    given = {name: value for name, value in given.items() if value is not None}
    folder = source.parent / (arguments.name or f"{source.name}-chat")
    given |= {"name": folder.name, "runs_folder": folder.parent}
    if arguments.resume:
        run = RunFolder(folder)
        return load_settings(RunConfig, run.config_file if run.has_run() else None, given)
    in_file = dict(flatten(load_yaml(arguments.config))) if arguments.config else {}
    return tuning_config(RunFolder(source), {**in_file, **given}, arguments.epochs)
