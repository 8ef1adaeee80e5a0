"""Source and destination of an export: a run at one checkpoint, and a folder that is written
atomically and only replaces earlier exports."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from groundup.checkpoint.record import read_record
from groundup.errors import ConfigError
from groundup.files import atomic_folder, find_folders
from groundup.generation import LanguageModel
from groundup.generation.loading import CheckpointName, load_run
from groundup.runs.folder import RunFolder

DtypeName = Literal["float32", "bfloat16", "float16"]

CARD_NAME = "README.md"

CARD_TAG = "groundup"
"""In the metadata of every model card; identifies our exports."""

# Files of an export, which another export may replace.
_OUR_NAMES = (
    *(CARD_NAME, "*config.json", "tokenizer.json", "special_tokens_map.json"),
    *("model*.safetensors", "model.safetensors.index.json", "modeling_groundup.py"),
    *("model.gguf", "Modelfile"),
)


class Source(LanguageModel):
    """A run at one of its checkpoints, with its provenance."""

    step: int

    def __init__(self, run: str | os.PathLike[str], checkpoint: CheckpointName = "newest") -> None:
        super().__init__(*load_run(run, checkpoint, device="cpu"))
        self.folder = RunFolder(run)
        self.name = self.folder.path.resolve().name
        self.config = self.model.config
        self.environment = self.folder.read_environment()
        saved = find_folders(self.folder.checkpoints)[f"step_{self.step:06d}"]
        self.weights_id = read_record(saved, self.step).weights_id


@contextlib.contextmanager
def export_folder(folder: str | os.PathLike[str], *, force: bool) -> Iterator[Path]:
    """Yield a temporary folder that replaces `folder` if the block succeeds.

    force: replace an earlier export; other non-empty folders are always refused.
    """
    destination = Path(os.path.realpath(folder))
    if destination.exists() and (reason := _refusal(destination, force=force)):
        raise ConfigError(f"{folder} {reason}")
    with atomic_folder(destination) as temporary:
        yield temporary


def _refusal(destination: Path, *, force: bool) -> str | None:
    """Return why an export may not replace the folder, or None."""
    if not destination.is_dir():
        return "is a file, but an export is a folder: choose another name"
    if Path.cwd().is_relative_to(destination):
        return "contains the current folder, which an export would replace: choose a new folder"
    entries = sorted(destination.iterdir())
    for one in entries:
        if one.is_dir() or not any(map(one.match, _OUR_NAMES)):
            return f"contains {one.name}, which is not part of an export: choose another folder"
    if entries and not force:
        return "is not empty: choose another folder, or replace the export in it with --force"
    card = destination / CARD_NAME
    if entries and not (card.is_file() and f"- {CARD_TAG}\n" in card.read_text("utf-8", "replace")):
        return "is not empty and not a groundup export: choose another folder"
    return None
