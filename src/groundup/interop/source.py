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
from groundup.generation.loading import SpecialIds
from groundup.model import ModelConfig
from groundup.runs.folder import RunFolder
from groundup.tokenizer import Tokenizer

CheckpointName = Literal["newest", "best"] | int
DtypeName = Literal["float32", "bfloat16", "float16"]


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
        special_ids=language_model.special_ids,
        settings=load_yaml(folder.config_file),
        environment=environment,
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
