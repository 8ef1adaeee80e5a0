"""Flags that several verbs share (tokenizer, reading text, models), and finding runs."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from groundup.cli.arguments import Positional
from groundup.cli.terminal import progress_bar
from groundup.config import MAX_STEPS, Settings
from groundup.errors import ConfigError, did_you_mean
from groundup.runs.folder import RunFolder

if TYPE_CHECKING:
    from groundup.generation.language_model import LanguageModel
    from groundup.tokenizer import Tokenizer

RUNS_FOLDER = Path("runs")
Precision = Literal["auto", "float32", "bfloat16"]
Checkpoint = Literal["newest", "best"] | Annotated[int, Field(ge=0, le=MAX_STEPS)]


class TokenizerFlags(Settings):
    """A tokenizer file."""

    tokenizer: Path = Path("tokenizer.json")
    """Tokenizer file, in any known format; groundup tokenizer convert adds what it lacks."""

    def load(self) -> "Tokenizer":
        from groundup.tokenizer import Tokenizer

        return Tokenizer.load(self.tokenizer)


class ReadingFlags(Settings):
    """How to read text from files."""

    field: str = "text"
    """JSON field, or CSV or Parquet column, with the text. Files without it use text, content,
body, a conversation, or the longest string field."""

    encoding: str | None = None
    """Encoding of files that are not UTF-8 (latin-1, utf-16, …), and of standard input."""

    errors: Literal["skip", "replace", "strict"] = "skip"
    """What to do with invalid bytes: skip the document, replace them with U+FFFD, or stop (strict).
skip also skips records without text and unreadable files."""

    strict: bool = False
    """Same as --errors strict: stop at the first file, document or record that cannot be read."""

    drop_duplicates: bool = True
    """Skip files with the same content as an earlier one."""

    follow_links: bool = False
    """Follow symbolic links that lead out of a folder."""

    @property
    def reading(self) -> dict[str, Any]:
        """As arguments of the functions that read."""
        found = {name: getattr(self, name) for name in ReadingFlags.model_fields}
        return found | ({"errors": "strict"} if found.pop("strict") else {})


@contextlib.contextmanager
def held_warnings(*, are_shown: bool) -> Iterator[None]:
    """Hold back warnings about reading: show them at the end, or never."""
    logger, holding = logging.getLogger("groundup.text_files"), logging.Handler()
    held: list[logging.LogRecord] = []
    holding.emit = held.append  # type: ignore[assignment,method-assign]
    before = logger.handlers, logger.propagate
    # Replace all handlers: none may show the warnings yet.
    logger.handlers, logger.propagate = [holding], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before
    for record in held if are_shown else ():
        logger.handle(record)


class CorpusFlags(ReadingFlags):
    """A corpus, and where to process it."""

    files: Positional[tuple[str, ...]]
    """Files, folders, globs, addresses such as hf://… or - for standard input: .txt, .md,
    .html, source code, .jsonl, .csv, .parquet, .ipynb, .docx, .epub, .pdf, .zip, .tar and more,
    also compressed (.gz, .zst, .xz). Other files in a folder are skipped and counted."""

    num_threads: Annotated[int, Field(ge=1, le=1_024)] | None = None
    """Number of threads. Default: all cores. The result does not depend on it."""

    engine: Literal["local", "ray"] = "local"
    """local uses this machine, ray all machines of a Ray cluster; the result is the same."""

    ray_address: str | None = None
    """host:port of the Ray cluster. Default: RAY_ADDRESS, this machine's cluster, or a new local
    one."""

    @contextlib.contextmanager
    def work(self, label: str) -> Iterator[dict[str, Any]]:
        """Arguments of the functions that process a corpus, with a progress bar."""
        with contextlib.ExitStack() as stack:
            engine = None
            if self.engine == "ray":
                from groundup.distributed.corpus import RayEngine

                engine = stack.enter_context(contextlib.closing(RayEngine(self.ray_address)))
            elif self.ray_address is not None:
                raise ConfigError("--ray-address needs --engine ray")
            progress = stack.enter_context(progress_bar(label))
            stack.enter_context(held_warnings(are_shown=True))
            threads = {"num_threads": self.num_threads, "progress": progress, "engine": engine}
            yield self.reading | threads


class CheckpointFlags(Settings):
    """Selects a checkpoint of a run."""

    checkpoint: Checkpoint = "newest"
    """Checkpoint to use: newest, best, or a step number."""


class RunFlags(CheckpointFlags):
    """A checkpoint of a run."""

    run: Positional[str]
    """The run: its folder, or its name in runs/."""


class LoadingFlags(CheckpointFlags):
    """Where and how to run a trained model."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps; auto picks the fastest available."""

    precision: Precision = "auto"
    """Precision of the computation; auto is bfloat16 on CUDA where supported, else float32."""

    def load(self, folder: Path) -> "LanguageModel":
        """Load the model of a run."""
        import torch

        from groundup.config import load_settings
        from groundup.generation import LanguageModel
        from groundup.runs.config import RunConfig
        from groundup.runtime import keep_freed_memory
        from groundup.training.resolve import resolve_device

        asked = {"device": self.device, "precision": self.precision}
        resolved = resolve_device(load_settings(RunConfig, overrides=asked))
        if resolved.device == "cpu":
            keep_freed_memory()
        dtype = torch.bfloat16 if resolved.precision == "bfloat16" else None
        return LanguageModel.load(folder, self.checkpoint, device=resolved.device, dtype=dtype)


class ModelFlags(RunFlags, LoadingFlags):
    """A trained model, and how to run it."""


def find_run(run: str) -> Path:
    """The folder of a run, given by its path or its name in `runs`."""
    for folder in (Path(run), RUNS_FOLDER / run):
        if RunFolder(folder).has_run():
            return folder
    if Path(run, "config.json").is_file():
        raise ConfigError(f"{run} is an export: start a run from it, as in train --from {run}")
    if Path(run).is_dir():
        raise ConfigError(f"{run} is not a run folder: it has no config.yaml")
    raise unknown_run(run)


def numbered_names(folder: Path, name: str) -> list[str]:
    """name, name-2, …: those that are runs in the folder, and the first that is not."""
    names = [name]
    while RunFolder(folder / names[-1]).has_run():
        names.append(f"{name}-{len(names) + 1}")
    return names


def unknown_run(run: str) -> ConfigError:
    """The error for a run that is neither a path nor in `runs`."""
    names = sorted(path.name for path in RUNS_FOLDER.glob("*/"))
    hint = did_you_mean(Path(run).name, names)
    return ConfigError(
        f"run {run} does not exist, neither as a folder nor in {RUNS_FOLDER}: {hint}"
    )
