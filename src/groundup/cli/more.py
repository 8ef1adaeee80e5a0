"""`groundup more`: continue training a run on its unread text or on new text."""

from pathlib import Path
from typing import Any, ClassVar

from groundup.cli.arguments import Positional, as_command
from groundup.cli.shared import ReadingFlags, find_run
from groundup.cli.train import MODEL_SETTINGS, TrainingFlags, continued_name, train_run
from groundup.errors import ConfigError
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runtime import STARTED, is_first_rank
from groundup.text_files import END_OF_TEXT

PREPARED_FOLDER = Path("prepared")


class Arguments(TrainingFlags, ReadingFlags):
    """Continue training a run, with its own data and settings, on text it has not seen first.

    The new run (RUN-more, or --name) starts from RUN's weights and optimizer state at a fraction of
    its learning rate, and keeps the checkpoint with the lowest validation loss, which may be RUN's.
    Default: 10 --minutes. All settings of groundup train are flags.
    """

    of_run: ClassVar = MODEL_SETTINGS

    run: Positional[str]
    """The run to continue: its folder, or its name in runs/."""

    files: Positional[tuple[str, ...]] = ()
    """New text: files or folders. Half of the training data is then new, half the run's own."""


def run(arguments: Arguments) -> int:
    source = RunFolder(find_run(arguments.run))
    config = _settings(arguments, source)
    print(f"continuing {source.path} as {config.run_folder}", flush=True)
    status = train_run(config, "training", arguments, STARTED)
    if status == 0 and is_first_rank():
        print(f'try it: groundup generate {config.run_folder} --prompt "Your own beginning"')
    return status


def _settings(arguments: Arguments, source: RunFolder) -> RunConfig:
    from groundup.config import load_settings
    from groundup.training.recipe import make_config

    given: dict[str, Any] = {"runs_folder": source.path.parent, **arguments.settings}
    name = continued_name(source, given["runs_folder"], is_resumed=arguments.resume)
    given.setdefault("name", name)
    run = RunFolder(given["runs_folder"] / given["name"])
    if arguments.resume:
        return load_settings(RunConfig, run.config_file if run.has_run() else None, given)
    if arguments.files:
        given |= _prepare(arguments, source, given["name"])
    config = make_config(given, source=source)
    if not config.tuning.chats and not config.data.shards.exists():
        is_imported = source.read_environment().get("data") is None
        reason = "was imported, without text" if is_imported else f"lost its {config.data.shards}"
        text = f"give new text, as in groundup more {source.path} FOLDER"
        raise ConfigError(f"{source.path} {reason}: {text}")
    return config


def _prepare(arguments: Arguments, source: RunFolder, name: str) -> dict[str, Any]:
    """Prepare shards of the new text; return the settings that mix them with the run's own."""
    from groundup.cli import data
    from groundup.training.recipe import continued_settings

    shards = PREPARED_FOLDER / name / "shards"
    prepare = data.Prepare(
        separator=separator_of(source),
        files=arguments.files,
        tokenizer=source.tokenizer_file,
        out=shards,
        validation_fraction=0.1,
        overwrite=shards.exists(),
        **arguments.reading,
    )
    print(f"$ {as_command('data prepare', prepare)}", flush=True)
    data.prepare(prepare)
    old = continued_settings(source, arguments.settings)
    mix = [str(one) for one in old.get("data.mix") or [f"{old.get('data.shards')}=1"]]
    parts = [one.rpartition("=") for one in mix if Path(one.rpartition("=")[0]).exists()]
    whole = sum(float(weight) for _, _, weight in parts)
    shown = [f"{path}={float(weight) / whole:.6g}" for path, _, weight in parts]
    found = {"data.shards": shards, "data.mix": [f"{shards}=1", *shown] if shown else ()}
    return {name: one for name, one in found.items() if name not in arguments.settings}


def separator_of(source: RunFolder) -> str:
    """The special token that ends a document for this model."""
    from groundup.generation.special_ids import find_special_ids
    from groundup.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(source.tokenizer_file)
    end = find_special_ids(tokenizer, source.read_environment()).end
    texts = [text for text, id in tokenizer.special_tokens.items() if id == end]
    return END_OF_TEXT if END_OF_TEXT in tokenizer.special_tokens or not texts else texts[0]
