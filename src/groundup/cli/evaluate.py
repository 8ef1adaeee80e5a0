"""`groundup evaluate`: loss, perplexity and bits per byte on shards or text, and task accuracy."""

import contextlib
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groundup.cli.arguments import Positional
from groundup.cli.shared import Precision, ReadingFlags, RunFlags, find_run, held_warnings
from groundup.cli.terminal import print_records, print_values, progress_bar
from groundup.errors import ConfigError, DataError

if TYPE_CHECKING:
    from groundup.runs.config import RunConfig
    from groundup.tokenizer import Tokenizer
    from groundup.training.evaluation import Evaluation

# Bytes of text per batch; progress is reported after each.
_BATCH_BYTES = 1 << 18
# Fewer ids at once would not keep a device busy; without gradients, this many always fit.
_MIN_BATCH_TOKENS = 2048


class Arguments(RunFlags, ReadingFlags):
    """Evaluate trained models on held-out text.

    Without files or tasks, on the validation split of the run's shards. Several runs are shown side
    by side; bits per byte is comparable between vocabularies.
    """

    files: Positional[tuple[str, ...]] = ()
    """More runs to compare with, and text to evaluate on: files, folders, globs or - for standard
    input."""

    tasks: tuple[str, ...] = ()
    """Multiple-choice tasks: .jsonl files in our format or BLiMP's, or folders."""

    split: str = "validation"
    """Split of the shards."""

    whole: bool = False
    """Use every token of the split, instead of the windows that the run evaluated."""

    shards: Path | None = None
    """Other shards with the same tokenizer. Default: the run's."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps; auto picks the fastest available."""

    precision: Precision | None = None
    """Precision of matmuls. Default: the run's, so that the loss is the one it logged."""

    json_: bool = False
    """Print one JSON object instead of a table."""


def run(arguments: Arguments) -> None:
    from groundup.files import without_non_finite
    from groundup.text_files import STDIN

    runs = [find_run(arguments.run), *filter(None, map(_as_run, arguments.files))]
    files = tuple(one for one in arguments.files if _as_run(one) is None)
    arguments = arguments.with_(files=files)
    if len(runs) > 1 and STDIN in files:
        raise ConfigError("each run reads the text again: save standard input to a file first")
    measured: list[dict[str, Any]] = []
    for folder in runs:
        with held_warnings(are_shown=not measured):
            measured.append(_measure(arguments, folder))
    if arguments.json_:
        found = measured[0] if len(runs) == 1 else {"runs": measured}
        print(json.dumps(without_non_finite(found), ensure_ascii=False))
        return
    for results in measured:
        if len(runs) == 1 and "loss" in results:
            hidden = ("run", "files", "tasks", "mix" if not results.get("mix") else "")
            shown = {name: value for name, value in results.items() if name not in hidden}
            print_values(results["run"], shown)
        if "tasks" in results:
            _print_scores(f"{results['run']}, step {results['step']:,}", results["tasks"])
    names = ("run", "step", "bits_per_byte", "loss", "perplexity", "tokens")
    if len(runs) > 1 and "loss" in measured[0]:
        title = ", ".join(files) or f"the {arguments.split} split of each"
        print_records(title, [{name: one.get(name) for name in names} for one in measured])


def _as_run(word: str) -> Path | None:
    """The run that an argument after the first names; None for text."""
    from groundup.runs.folder import RunFolder

    is_text = Path(word).exists() and not RunFolder(word).has_run()
    with contextlib.suppress(ConfigError):
        return None if is_text else find_run(word)
    return None


def _measure(arguments: Arguments, folder: Path) -> dict[str, Any]:
    from groundup.checkpoint import CheckpointFolder
    from groundup.config import load_settings
    from groundup.data.chats import PackedRows
    from groundup.data.tasks import read_tasks
    from groundup.generation import LanguageModel
    from groundup.runs.config import RunConfig
    from groundup.runs.folder import RunFolder
    from groundup.text_files import read_document_batches
    from groundup.training.evaluation import Evaluator
    from groundup.training.machine import autocast, switches
    from groundup.training.preference import Preference
    from groundup.training.resolve import resolve_device
    from groundup.training.tasks import Scorer

    is_split = not arguments.files and not arguments.tasks
    if not is_split and (arguments.shards or arguments.whole or arguments.split != "validation"):
        raise ConfigError(
            "--split, --whole and --shards apply to shards: remove them, or the files and --tasks"
        )
    config = RunFolder(folder).read_config()
    precision = arguments.precision or config.evaluation_precision
    asked = {"device": arguments.device, "precision": precision}
    config = resolve_device(load_settings(RunConfig, None, config.model_dump() | asked))
    tasks = read_tasks(arguments.tasks)
    loaded = LanguageModel.load(folder, arguments.checkpoint, device=config.device)
    model, tokenizer, length = loaded.model, loaded.tokenizer, config.model.context_length
    num_sequences = config.evaluation.batch_size or config.sequences_in_memory
    batch_tokens = max(_MIN_BATCH_TOKENS, num_sequences * length)
    scorer = Scorer(model, tokenizer, loaded.begin_id, batch_tokens, lambda: autocast(config))
    results: dict[str, Any] = {"run": str(folder), "step": loaded.step}
    with switches(config):
        if is_split:
            rows, notes = _open_split(arguments, folder, config, tokenizer)
            num_windows = None if arguments.whole else config.evaluation.num_windows
            evaluator = Evaluator(rows, tokenizer, length, num_windows, num_sequences)
            preference = None
            if isinstance(rows, PackedRows) and rows.has_pairs:
                newest = CheckpointFolder(RunFolder(folder).checkpoints).newest()
                preference = Preference.open(config, model, [rows], newest)
            found = evaluator(model, lambda: autocast(config), preference)
            results |= {"split": arguments.split, **_describe(found), **notes}
        if arguments.files:
            with progress_bar("evaluating") as progress:
                batches = read_document_batches(
                    arguments.files,
                    **arguments.reading,
                    batch_bytes=_BATCH_BYTES,
                    progress=progress,
                )
                found, num_documents = scorer.evaluate_documents(batches)
            counts = {"documents": num_documents, "bytes": found.num_bytes}
            results |= {"files": arguments.files, **counts, **_describe(found)}
        if tasks:
            with progress_bar("scoring choices") as progress:
                scores = {task.name: scorer.score_task(task, progress) for task in tasks}
            results["tasks"] = scores
    return results


def _open_split(
    arguments: Arguments, folder: Path, config: "RunConfig", tokenizer: "Tokenizer"
) -> tuple[Any, dict[str, Any]]:
    """A split of the shards, or of a tuned run's conversations, and notes about it."""
    from groundup.data.shards import open_shards
    from groundup.runs.folder import resolve_run_path
    from groundup.training.data import open_conversations

    name, tuning = arguments.split, config.tuning
    if tuning.chats and arguments.shards is None:
        chats = tuple(resolve_run_path(path, folder, config) for path in tuning.chats)
        tuning = tuning.model_copy(update={"chats": chats})
        config = config.model_copy(update={"tuning": tuning})
        train, validation, _ = open_conversations(config, tokenizer)
        rows = {"train": train, "validation": validation}.get(name)
        if rows is None:
            raise DataError(f"the conversations have no {name} split: choose --split train")
        return rows, {}
    path = arguments.shards or _shards_of(folder, config)
    shards = open_shards(path, name, tokenizer)
    if len(shards) < 2:
        raise DataError(
            f"the {name} split in {path} has too few tokens to evaluate ({len(shards)}); rerun "
            f"groundup data prepare with --validation-fraction 0.1 --overwrite"
        )
    return shards, {"shards": str(path), "mix": config.data.mix}


def _shards_of(folder: Path, config: "RunConfig") -> Path:
    """The run's shards; warns if other data have replaced them."""
    from groundup.data.shards import content_id, read_index
    from groundup.runs.folder import RunFolder, resolve_run_path

    shards = resolve_run_path(config.data.shards, folder, config)
    trained = RunFolder(folder).read_environment().get("data")
    expected = trained.get("content") if isinstance(trained, dict) else None
    if shards.exists() and expected is not None and content_id(read_index(shards)) != expected:
        message = "%s does not contain the data that %s was trained on; name other shards with %s"
        logging.getLogger(__name__).warning(message, shards, folder, "--shards")
    return shards


def _describe(evaluation: "Evaluation") -> dict[str, Any]:
    return {"tokens": evaluation.num_tokens, "loss": evaluation.loss, **evaluation.metrics}


def _print_scores(title: str, scores: dict[str, dict[str, Any]]) -> None:
    """Accuracies with 95% intervals, and the mean of several tasks."""
    averaged = ("chance", "accuracy", "accuracy_per_byte")
    names = ("questions", "cut", "chance", "accuracy", "interval", "accuracy_per_byte")
    records: list[dict[str, Any]] = [
        {"task": task} | {name: score[name] for name in names} for task, score in scores.items()
    ]
    if len(records) > 1:
        means = {name: sum(one[name] for one in records) / len(records) for name in averaged}
        records.append(dict.fromkeys(records[0]) | {"task": "mean"} | means)
    print_records(title, records)
