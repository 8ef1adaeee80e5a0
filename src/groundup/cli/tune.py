"""`groundup tune`: teach a trained model to answer, from conversations; a run like every other."""

from pathlib import Path
from typing import Any

from pydantic import Field

from groundup.cli.arguments import Positional
from groundup.cli.shared import find_run
from groundup.cli.train import TrainingFlags, train_run
from groundup.runs.config import RunConfig
from groundup.runtime import is_first_rank


class Arguments(TrainingFlags):
    """Tune a trained model on conversations, so that it answers.

    Only the answers are learned. The new run begins with the weights of RUN and gets its tokenizer
    with a chat template; it is generated with, served, evaluated, exported and resumed as any run.
    All settings of groundup train are flags. If not given, --name is RUN's with -chat at its end,
    --epochs 3 unless --num-steps is given, --batch-size 8 or fewer where there are few,
    --optimizer.learning-rate 3e-3 up to a d_model of 128, less for wider models, and five times
    that for adapters, --model.context-length that of RUN (longer conversations lose their end), and
    --tuning.template that of the tokenizer, or ChatML.
    """

    run: Positional[str]
    """The run to begin with: its folder, or its name under runs."""

    chats: Positional[tuple[str, ...]]
    """Conversations in JSON lines, JSON or CSV, also compressed: messages as OpenAI has them,
    ShareGPT's conversations, Alpaca's instruction and output, or pairs such as question and
    answer."""

    strict: bool = False
    """Stop at a record that is no conversation; without it such are skipped and named."""

    lora_rank: int | None = Field(default=None, ge=1, le=2**16)
    """Learn low-rank adapters of this rank instead of all weights; everything that opens the run
    sees them merged."""


def run(arguments: Arguments) -> int:
    """Tune and print the results; a signal that stopped the run decides the exit status."""
    config = _settings(arguments, find_run(arguments.run))
    status = train_run(config, "tuning", arguments)
    if status == 0 and is_first_rank():
        print(f"talk to it: groundup chat {config.run_folder}")
        print(f"in a browser: groundup serve {config.run_folder}")
    return status


def _settings(arguments: Arguments, source: Path) -> RunConfig:
    """The settings of the new run, beside the other."""
    from groundup.config import flatten, load_settings, load_yaml
    from groundup.runs.folder import RunFolder
    from groundup.training.recipe import tuning_config

    given: dict[str, Any] = {"name": f"{source.name}-chat", "runs_folder": source.parent}
    given |= {"tuning.chats": arguments.chats} | arguments.settings
    if arguments.strict:
        given["tuning.strict"] = True
    if arguments.lora_rank is not None:
        given["tuning.lora_rank"] = arguments.lora_rank
    run = RunFolder(given["runs_folder"] / given["name"])
    if arguments.resume:
        return load_settings(RunConfig, run.config_file if run.has_run() else None, given)
    in_file = dict(flatten(load_yaml(arguments.config))) if arguments.config else {}
    return tuning_config(RunFolder(source), {**in_file, **given})
