"""`groundup evaluate`: loss, perplexity and bits per byte of a run on a split of its shards or on
any text, and its accuracy on multiple-choice tasks."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tyro.conf import Positional

from groundup.cli.shared import Precision, ReadingFlags, RunFlags
from groundup.errors import ConfigError, DataError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from groundup.data.tasks import Task
    from groundup.generation import LanguageModel
    from groundup.runs.config import RunConfig
    from groundup.training.evaluation import Evaluation
    from groundup.training.tasks import TaskScore

# Of the text that is read at once: a document is never cut, and progress is told after each part.
_BATCH_BYTES = 1 << 18


class Arguments(RunFlags, ReadingFlags):
    """Evaluate a trained model on text that it was not trained on.

    Without files and tasks it is evaluated on the validation split of its shards.
    """

    files: Positional[tuple[str, ...]] = ()
    """Text to evaluate on: files, folders, globs or - for standard input."""

    tasks: tuple[str, ...] = ()
    """Multiple-choice tasks: .jsonl files in our format, BLiMP's or HellaSwag's, folders of such,
    or the built-in agreement and who_did_what."""

    split: str = "validation"
    """The split of the shards to evaluate on."""

    whole: bool = False
    """Use every token of the split; without it the windows of the run's own evaluations."""

    shards: Path | None = None
    """Other shards of the same tokenizer; those of the run if not given."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps; auto takes the fastest there is."""

    precision: Precision | None = None
    """Of matmuls; the run's own if not given, so that the loss is the one it logged."""

    json_: bool = False
    """Print one JSON object instead of a table."""


def run(arguments: Arguments) -> None:
    """Load, measure, print."""
    from groundup.cli.shared import find_run
    from groundup.cli.task_scores import describe_score, print_scores
    from groundup.config import load_settings
    from groundup.data.tasks import read_tasks
    from groundup.generation import LanguageModel
    from groundup.runs.config import RunConfig
    from groundup.runs.folder import RunFolder
    from groundup.training.execution import switches
    from groundup.training.resolve import resolve_device

    is_split = not arguments.files and not arguments.tasks
    if not is_split and (arguments.shards or arguments.whole or arguments.split != "validation"):
        raise ConfigError(
            "--split, --whole and --shards are about shards: leave them out, or leave out the "
            "files and --tasks"
        )
    folder = find_run(arguments.run)
    config = RunFolder(folder).read_config()
    precision = arguments.precision or config.evaluation_precision
    asked = {"device": arguments.device, "precision": precision}
    load_settings(RunConfig, overrides=asked)  # model_copy checks nothing.
    config = resolve_device(config.model_copy(update=asked))
    tasks = read_tasks(arguments.tasks)
    language_model = LanguageModel.load(folder, arguments.checkpoint, device=config.device)
    measuring = _Measuring(config, language_model)
    results: dict[str, Any] = {"run": str(folder), "step": language_model.step}
    scores: list[TaskScore] = []
    with switches(config):
        if is_split and config.tuning.chats and arguments.shards is None:
            found = with_chats_of(folder, config)
            results |= measuring.answers(found, arguments.split, whole=arguments.whole)
        elif is_split:
            shards = arguments.shards or shards_of(folder, config)
            results |= measuring.split(shards, arguments.split, whole=arguments.whole)
            results |= {"shards": str(shards), "mix": list(config.data.mix)}
        if arguments.files:
            results |= measuring.text(arguments)
        if tasks:
            scores = measuring.tasks(tasks)
    if arguments.json_:
        described = {score.name: describe_score(score) for score in scores}
        _print_json(results | ({"tasks": described} if described else {}))
        return
    if "loss" in results:
        _print_table(results)
    if scores:
        print_scores(f"{folder}, step {language_model.step:,}", scores)


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


class _Measuring:
    """Measures a model as its run does."""

    def __init__(self, config: "RunConfig", language_model: "LanguageModel") -> None:
        """config: of the run, with the device and the precision to compute in, resolved."""
        from groundup.training.resolve import sequences_to_evaluate

        self._config = config
        self._language_model = language_model
        self._num_sequences = config.evaluation.batch_size or sequences_to_evaluate(config)

    def split(self, folder: Path, split: str, *, whole: bool) -> dict[str, Any]:
        """On a split of shards: all of it, or the windows of the run's own evaluations."""
        from groundup.data.shards import open_shards

        tokenizer = self._language_model.tokenizer
        shards = open_shards(folder, split, tokenizer)
        if len(shards) < 2:
            raise DataError(
                f"the {split} split in {folder} has too few tokens to evaluate ({len(shards)}); "
                f"rerun groundup data prepare with --validation-fraction 0.1 --overwrite"
            )
        return {"split": split, **self._evaluate(shards, self._config, whole=whole)}

    def answers(self, config: "RunConfig", split: str, *, whole: bool) -> dict[str, Any]:
        """On the answers of a tuned run's conversations."""
        from groundup.training.tuning import read_conversation_rows

        tokenizer = self._language_model.tokenizer
        _, train, validation = read_conversation_rows(config, tokenizer)
        rows = {"train": train, "validation": validation}.get(split)
        if rows is None:
            raise DataError(
                f"the conversations of the run have no {split} split: choose --split train"
            )
        return {"split": split, **self._evaluate(rows, config, whole=whole)}

    def _evaluate(self, rows: Any, config: "RunConfig", *, whole: bool) -> dict[str, Any]:
        from groundup.training.evaluation import Evaluator

        evaluate = Evaluator(
            rows,
            self._language_model.tokenizer,
            config.model.context_length,
            None if whole else config.evaluation.num_windows,
            self._num_sequences,
        )
        return _describe(evaluate(self._language_model.model, self._autocast))

    def text(self, arguments: Arguments) -> dict[str, Any]:
        """On the documents of files."""
        from groundup.cli.terminal import progress_bar
        from groundup.text_files import read_document_batches
        from groundup.training.tasks import evaluate_documents

        with progress_bar("evaluating") as report:
            found = evaluate_documents(
                self._language_model.model,
                self._language_model.tokenizer,
                read_document_batches(
                    arguments.files,
                    **arguments.reading,
                    batch_bytes=_BATCH_BYTES,
                    progress=report,
                ),
                begin_id=self._language_model.begin_id,
                batch_tokens=self._batch_tokens,
                autocast=self._autocast,
            )
        counts = {"documents": found.num_documents, "bytes": found.num_bytes}
        return {"files": list(arguments.files), **counts, **_describe(found.evaluation)}

    def tasks(self, tasks: "list[Task]") -> "list[TaskScore]":
        """On multiple-choice tasks."""
        from groundup.cli.terminal import progress_bar
        from groundup.training.tasks import TaskEvaluator

        evaluator = TaskEvaluator(
            tasks,
            self._language_model.tokenizer,
            self._config.model.context_length,
            begin_id=self._language_model.begin_id,
            batch_tokens=self._batch_tokens,
        )
        with progress_bar("scoring choices", "texts") as report:
            return evaluator(self._language_model.model, self._autocast, report)

    @property
    def _batch_tokens(self) -> int:
        from groundup.training.tasks import batch_tokens_of

        return batch_tokens_of(self._num_sequences, self._config.model.context_length)

    def _autocast(self) -> "AbstractContextManager[Any]":
        from groundup.training.execution import autocast

        return autocast(self._config)


def _describe(evaluation: "Evaluation") -> dict[str, Any]:
    return {
        "tokens": evaluation.num_tokens,
        "loss": evaluation.loss,
        "perplexity": evaluation.perplexity,
        "bits_per_byte": evaluation.bits_per_byte,
    }


def _print_json(results: dict[str, Any]) -> None:
    import json

    from groundup.files import without_non_finite

    print(json.dumps(without_non_finite(results), ensure_ascii=False))


def _print_table(results: dict[str, Any]) -> None:
    from groundup.cli.terminal import print_results
    from groundup.planner.quantities import show_bytes
    from groundup.runtime import count_of

    amount = count_of(results["tokens"], "token")
    if "documents" in results:
        documents = count_of(results["documents"], "document")
        amount = f"{documents}, {amount}, {show_bytes(results['bytes'])}"
    rows = [("checkpoint", f"step {results['step']:,}")]
    if results.get("mix"):
        rows += [("trained on", ", ".join(results["mix"])), ("shards", results["shards"])]
    rows += [
        (results.get("split", "text"), amount),
        ("loss", f"{results['loss']:.4f}"),
        ("perplexity", f"{results['perplexity']:.3f}"),
    ]
    if results["bits_per_byte"] is not None:
        rows.append(("bits per byte", f"{results['bits_per_byte']:.4f}"))
    print_results(results["run"], rows)
