"""What an export is made from: a run folder at one checkpoint, read and checked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from groundup.checkpoint.folder_swap import find_folder
from groundup.checkpoint.record import MODEL_NAME, read_record
from groundup.config import load_yaml
from groundup.generation import LanguageModel
from groundup.model import ModelConfig
from groundup.text_files import END_OF_TEXT
from groundup.tokenizer import Tokenizer
from groundup.training.run_folder import RunFolder

CheckpointName = Literal["newest", "best"] | int
DtypeName = Literal["float32", "bfloat16", "float16"]

IMPORTED_KEY = "imported"
"""In environment.json of an imported run: where it came from."""


@dataclass(frozen=True)
class SpecialIds:
    """Ids with a meaning of their own; a model may know several ends."""

    begin: int | None = None
    ends: tuple[int, ...] = ()
    padding: int | None = None

    @property
    def end(self) -> int | None:
        return self.ends[0] if self.ends else None


@dataclass(frozen=True)
class Source:
    """A run at one of its checkpoints."""

    folder: RunFolder
    step: int
    config: ModelConfig
    weights: dict[str, Tensor]
    weights_id: str
    """Content id of the checkpoint's weights file."""
    tokenizer: Tokenizer
    special_ids: SpecialIds
    settings: dict[str, Any]
    environment: dict[str, Any]

    @property
    def name(self) -> str:
        return self.folder.path.resolve().name


def open_source(
    run_folder: str | os.PathLike[str], checkpoint: CheckpointName = "newest"
) -> Source:
    """Read a run as `LanguageModel.load` does, with what is known of where it came from."""
    folder = RunFolder(run_folder)
    language_model = LanguageModel.load(run_folder, checkpoint, device="cpu")
    step = language_model.step or 0
    environment = folder.read_environment()
    return Source(
        folder=folder,
        step=step,
        config=language_model.model.config,
        weights=language_model.model.state_dict(),
        weights_id=_weights_id(folder.checkpoints, step),
        tokenizer=language_model.tokenizer,
        special_ids=find_special_ids(language_model.tokenizer, environment),
        settings=load_yaml(folder.config_file),
        environment=environment,
    )


def find_special_ids(tokenizer: Tokenizer, environment: dict[str, Any]) -> SpecialIds:
    """Those an imported run came with; else the end of text, which also begins and pads."""
    imported = environment.get(IMPORTED_KEY)
    stored = imported.get("special_ids") if isinstance(imported, dict) else None
    if isinstance(stored, dict):
        return read_special_ids(stored, tokenizer)
    end = tokenizer.special_tokens.get(END_OF_TEXT)
    return SpecialIds() if end is None else SpecialIds(begin=end, ends=(end,), padding=end)


def read_special_ids(value: dict[str, Any], tokenizer: Tokenizer) -> SpecialIds:
    """Special ids under Hugging Face's names; what is no id of the tokenizer is left out."""

    def known(id: Any) -> int | None:
        return id if type(id) is int and id in tokenizer.vocab else None

    stored = value.get("eos_token_id")
    ends = [known(id) for id in (stored if isinstance(stored, list) else [stored])]
    return SpecialIds(
        begin=known(value.get("bos_token_id")),
        ends=tuple(id for id in ends if id is not None),
        padding=known(value.get("pad_token_id")),
    )


def express_special_ids(ids: SpecialIds) -> dict[str, Any]:
    """Special ids under Hugging Face's names; several ends are a list."""
    return {
        "bos_token_id": ids.begin,
        "eos_token_id": list(ids.ends) if len(ids.ends) > 1 else ids.end,
        "pad_token_id": ids.padding,
    }


def _weights_id(checkpoints: Path, step: int) -> str:
    place = checkpoints / f"step_{step:06d}"
    return read_record(find_folder(place) or place, step).files[MODEL_NAME].hash
