"""What an export is made from and where it goes: a run at one checkpoint, read and checked; and a
folder that is whole or absent, and never one with other things in it."""

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
"""In the head of every card, and so the sign of an export of ours."""

# What an export holds, and so what another may replace.
_OUR_NAMES = (
    *(CARD_NAME, "*config.json", "tokenizer.json", "special_tokens_map.json"),
    *("model*.safetensors", "model.safetensors.index.json", "modeling_groundup.py"),
    *("model.gguf", "Modelfile"),
)


class Source(LanguageModel):
    """A run at one of its checkpoints, with what is known of where it came from."""

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
    """Yield a folder to fill beside `folder`; it replaces that one if the block succeeds.

    A folder that is not empty needs `force`, which replaces an earlier export and nothing else.
    """
    destination = Path(os.path.realpath(folder))
    if destination.exists() and (complaint := _why_not(destination, force=force)):
        raise ConfigError(f"{folder} {complaint}")
    with atomic_folder(destination) as temporary:
        yield temporary


def _why_not(destination: Path, *, force: bool) -> str | None:
    """What keeps an export from replacing what is there."""
    if not destination.is_dir():
        return "is a file, and an export is a folder: choose another name"
    if Path.cwd().is_relative_to(destination):
        return "holds the folder you are in, and an export replaces it as a whole: name a new one"
    entries = sorted(destination.iterdir())
    for one in entries:
        if one.is_dir() or not any(map(one.match, _OUR_NAMES)):
            return f"holds {one.name}, which is not part of an export: choose another folder"
    if entries and not force:
        return "is not empty: choose another folder, or replace the export in it with --force"
    card = destination / CARD_NAME
    if entries and not (card.exists() and f"- {CARD_TAG}\n" in card.read_text("utf-8", "replace")):
        return "is not empty, and no export of ours: choose another folder"
    return None
