"""`groundup evaluate`: loss, perplexity and bits per byte of a run on a split of its shards."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tyro.conf import Positional

from groundup.errors import ConfigError, DataError

if TYPE_CHECKING:
    from groundup.runs.config import RunConfig
    from groundup.training.evaluation import Evaluation


@dataclass(frozen=True)
class Arguments:
    """Evaluate a trained model on text that it was not trained on."""

    run: Positional[str]
    """The run: its folder, or its name under runs."""

    split: str = "validation"
    """The split of the shards to evaluate on."""

    whole: bool = False
    """Use every token of the split; without it the windows of the run's own evaluations."""

    checkpoint: str = "newest"
    """The checkpoint to evaluate: newest, best, or a step."""

    shards: Path | None = None
    """Other shards of the same tokenizer; those of the run if not given."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps; auto takes the fastest there is."""

    precision: Literal["auto", "float32", "bfloat16"] | None = None
    """Of matmuls; the run's own if not given, so that the loss is the one it logged."""

    json: bool = False
    """Print one JSON object instead of a table."""


def run(arguments: Arguments) -> None:
    """Load, measure, print."""
    from groundup.cli.runs import find_run
    from groundup.config import load_settings
    from groundup.runs.config import RunConfig
    from groundup.runs.folder import RunFolder

    checkpoint = parse_checkpoint(arguments.checkpoint)
    folder = find_run(arguments.run)
    config = RunFolder(folder).read_config()
    asked = {"device": arguments.device, "precision": arguments.precision or config.precision}
    load_settings(RunConfig, overrides=asked)  # model_copy checks nothing.
    config = config.model_copy(update=asked)
    step, evaluation = measure_run(
        folder,
        config,
        checkpoint=checkpoint,
        shards_folder=arguments.shards,
        split=arguments.split,
        whole=arguments.whole,
    )
    results: dict[str, Any] = {
        "run": str(folder),
        "step": step,
        "split": arguments.split,
        "tokens": evaluation.num_tokens,
        "loss": evaluation.loss,
        "perplexity": evaluation.perplexity,
        "bits_per_byte": evaluation.bits_per_byte,
    }
    if arguments.json:
        _print_json(results)
    else:
        _print_table(results)


def shards_of(folder: Path, config: "RunConfig") -> Path:
    """Where the data of a run lie; a warning where other data have taken their place.

    A relative path is read from where the run was started, which the folder's own path tells.

    folder, config: of the run.
    """
    from groundup.data.shards import content_id, read_index
    from groundup.runs.folder import RunFolder

    shards = _from_where_it_started(config.data.shards, folder, config)
    if not shards.exists():
        return config.data.shards
    trained = RunFolder(folder).read_environment().get("data")
    expected = trained.get("content") if isinstance(trained, dict) else None
    if expected is not None and content_id(read_index(shards)) != expected:
        message = f"{shards} does not hold the data that {folder} was trained on"
        print(f"warning: {message}; name other shards with --shards", file=sys.stderr)
    return shards


def with_chats_of(folder: Path, config: "RunConfig") -> "RunConfig":
    """The settings of a tuned run, with its conversations found as `shards_of` finds shards."""
    chats = [_from_where_it_started(path, folder, config) for path in config.tuning.chats]
    found = tuple(
        new if new.exists() else old for new, old in zip(chats, config.tuning.chats, strict=True)
    )
    return config.model_copy(update={"tuning": config.tuning.model_copy(update={"chats": found})})


def _from_where_it_started(path: Path, folder: Path, config: "RunConfig") -> Path:
    parts, num_own = folder.absolute().parts, len(config.run_folder.parts)
    is_known = parts[-num_own:] == config.run_folder.parts
    return Path(*parts[:-num_own]) / path if is_known else path


def measure_run(
    folder: Path,
    config: "RunConfig",
    *,
    checkpoint: Literal["newest", "best"] | int = "newest",
    shards_folder: Path | None = None,
    split: str = "validation",
    whole: bool = False,
) -> "tuple[int | None, Evaluation]":
    """The step of the checkpoint and its results, computed as the run itself computes them.

    folder: the run.
    config: its settings, with the device and the precision to evaluate in.
    checkpoint: which one: newest, best, or a step.
    shards_folder: the shards to evaluate on; the run's own data if None.
    split: a split of them.
    whole: use every token of the split, else the windows of the run's own evaluations.
    """
    from groundup.data.shards import open_shards
    from groundup.generation import LanguageModel
    from groundup.training.evaluation import evaluate
    from groundup.training.execution import (
        autocast,
        resolve_device,
        sequences_to_evaluate,
        switches,
    )

    config = resolve_device(config)
    language_model = LanguageModel.load(folder, checkpoint, device=config.device)
    tokenizer = language_model.tokenizer
    options: dict[str, Any] = {
        "batch_size": config.evaluation.batch_size or sequences_to_evaluate(config),
        "autocast": lambda: autocast(config),
    }
    num_windows = None if whole else config.evaluation.num_windows
    if config.tuning.chats and shards_folder is None:
        from groundup.training.tuning import evaluate_answers

        found = with_chats_of(folder, config)
        with switches(config):
            evaluation = evaluate_answers(
                found, language_model.model, tokenizer, split=split, num_rows=num_windows, **options
            )
        return language_model.step, evaluation
    shards_folder = shards_folder or shards_of(folder, config)
    shards = open_shards(shards_folder, split, tokenizer)
    if len(shards) < 2:
        raise DataError(
            f"the {split} split in {shards_folder} has too few tokens to evaluate ({len(shards)}); "
            f"rerun groundup data prepare with --validation-fraction 0.1 --overwrite"
        )
    with switches(config):
        evaluation = evaluate(
            language_model.model,
            shards,
            tokenizer,
            num_windows=num_windows,
            **options,
        )
    return language_model.step, evaluation


def parse_checkpoint(text: str) -> Literal["newest", "best"] | int:
    """Read newest, best or the number of a step."""
    if text == "newest":
        return "newest"
    if text == "best":
        return "best"
    if re.fullmatch(r"\d+", text, re.ASCII):
        return int(text)
    raise ConfigError(f"--checkpoint {text} is neither newest nor best nor the number of a step")


def _print_json(results: dict[str, Any]) -> None:
    import json
    import math

    known = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in results.items()
    }
    print(json.dumps(known, ensure_ascii=False))


def _print_table(results: dict[str, Any]) -> None:
    from groundup.cli.tables import print_results
    from groundup.runtime import count_of

    rows = [
        ("checkpoint", f"step {results['step']:,}"),
        (results["split"], count_of(results["tokens"], "token")),
        ("loss", f"{results['loss']:.4f}"),
        ("perplexity", f"{results['perplexity']:.3f}"),
    ]
    if results["bits_per_byte"] is not None:
        rows.append(("bits per byte", f"{results['bits_per_byte']:.4f}"))
    print_results(results["run"], rows)
