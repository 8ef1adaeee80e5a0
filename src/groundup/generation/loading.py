"""A run folder as a model, its tokenizer and the ids that begin and end its texts."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pydantic
import torch

from groundup import __version__
from groundup.checkpoint import Checkpoint, CheckpointFolder, check_shapes, restore_model
from groundup.config import describe_validation_error, load_settings, load_yaml
from groundup.errors import CheckpointError, ConfigError
from groundup.files import atomic_folder
from groundup.generation.chat import find_turn_end
from groundup.model import ModelConfig, TransformerLM
from groundup.model.shapes import weight_shapes
from groundup.planner import check_holdable
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runtime import memory_bytes
from groundup.text_files import END_OF_TEXT
from groundup.tokenizer import Tokenizer

IMPORTED_KEY = "imported"
"""In environment.json of an imported run: where it came from."""
SPECIAL_IDS_KEY = "special_ids"
"""In there, or in environment.json of a saved run: its special ids, under Hugging Face's names."""


@dataclass(frozen=True)
class SpecialIds:
    """Ids with a meaning of their own; a model may know several ends."""

    begin: int | None = None
    ends: tuple[int, ...] = ()
    padding: int | None = None

    @property
    def end(self) -> int | None:
        return self.ends[0] if self.ends else None


def load_run(
    run: str | os.PathLike[str],
    checkpoint: Literal["newest", "best"] | int = "newest",
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[TransformerLM, Tokenizer, int, SpecialIds]:
    """The model, its tokenizer, its step and special ids: what `LanguageModel` is made of.

    Settings, shapes and memory are checked before the weights are read.

    run: the run folder.
    checkpoint: newest, best, or the number of a step.
    device: where the model goes; the CPU if None.
    dtype: of the weights; float32 if None.
    """
    folder = RunFolder(run)
    config = _read_model_config(folder)
    tokenizer = Tokenizer.load(folder.tokenizer_file)
    found = _find_checkpoint(folder, checkpoint)
    while True:
        try:
            check_shapes(weight_shapes(config), found.model_shapes())
            weights = found.model_state()
            break
        except CheckpointError:
            # A run that goes on replaces its checkpoints and removes old ones.
            passed, found = found, _find_checkpoint(folder, checkpoint)
            if (found.step, found.weights_id) == (passed.step, passed.weights_id):
                raise
    if torch.device(device or "cpu").type == "cpu":
        check_holdable(config, memory_bytes(), num_sequences=1)
    model = TransformerLM.from_config(config, device=device)
    restore_model(model, weights)
    _check_settings(folder, config, found)
    if dtype is not None:
        model = model.to(dtype)
    environment = folder.read_environment()
    if _masks_documents(folder):
        model.document_id = _known(environment.get("end_id"), tokenizer)
    special_ids = find_special_ids(tokenizer, environment)
    return model.eval(), tokenizer, found.step, special_ids


def save_run(
    path: str | os.PathLike[str],
    model: TransformerLM,
    tokenizer: Tokenizer,
    step: int,
    special_ids: SpecialIds,
) -> None:
    """Make a run folder, at once and whole, that holds one checkpoint of this model.

    It can be generated with, evaluated, served, exported and trained from, not resumed: there is no
    optimizer in it.

    path: of the new folder.   step: how long the model was trained.
    tokenizer, special_ids: of the model.
    """
    destination = Path(path)
    if destination.exists():
        raise ConfigError(f"{destination} exists: save to another folder, or remove it")
    config = load_settings(
        RunConfig,
        overrides={
            "name": destination.name,
            "runs_folder": str(destination.parent),
            "model": model.config.model_dump(),
            "data.tokenizer": str(destination / "tokenizer.json"),
        },
    )
    stored = {"bos_token_id": special_ids.begin, "eos_token_id": list(special_ids.ends)}
    stored["pad_token_id"] = special_ids.padding
    with atomic_folder(destination) as temporary:
        folder = RunFolder(temporary)
        CheckpointFolder(folder.checkpoints).save(
            step,
            model.state_dict(),
            {"state": {}, "param_groups": []},
            {"settings": config.model_dump(mode="json")},
        )
        folder.begin(config, tokenizer, {"groundup": __version__, SPECIAL_IDS_KEY: stored})


def find_special_ids(tokenizer: Tokenizer, environment: dict[str, Any]) -> SpecialIds:
    """Those an imported or saved run came with; else the end of documents, to begin and pad too.

    What ends a turn under the tokenizer's chat template is an end as well.

    tokenizer: of the run.
    environment: as `environment.json` holds it.
    """
    found = _find_own_ids(tokenizer, environment)
    turn_end = find_turn_end(tokenizer)
    if turn_end is None or turn_end in found.ends:
        return found
    return replace(found, ends=(*found.ends, turn_end))


def _find_own_ids(tokenizer: Tokenizer, environment: dict[str, Any]) -> SpecialIds:
    imported = environment.get(IMPORTED_KEY)
    found = imported if isinstance(imported, dict) else environment
    stored = found.get(SPECIAL_IDS_KEY)
    if isinstance(stored, dict):
        return read_special_ids(stored, tokenizer)
    end = _known(environment.get("end_id"), tokenizer)
    if end is None:
        end = tokenizer.special_tokens.get(END_OF_TEXT)
    return SpecialIds() if end is None else SpecialIds(begin=end, ends=(end,), padding=end)


def read_special_ids(value: dict[str, Any], tokenizer: Tokenizer) -> SpecialIds:
    """Special ids under Hugging Face's names; what is not an id of the tokenizer is left out."""
    stored = value.get("eos_token_id")
    ends = [_known(id, tokenizer) for id in (stored if isinstance(stored, list) else [stored])]
    return SpecialIds(
        begin=_known(value.get("bos_token_id"), tokenizer),
        ends=tuple(id for id in ends if id is not None),
        padding=_known(value.get("pad_token_id"), tokenizer),
    )


def _known(id: Any, tokenizer: Tokenizer) -> int | None:
    return id if type(id) is int and id in tokenizer.vocab else None


def _read_model_config(folder: RunFolder) -> ModelConfig:
    path = folder.config_file
    if not folder.path.is_dir():
        raise CheckpointError(
            f"run folder {folder.path} does not exist: check the name, or train it first"
        )
    if not folder.has_run():
        raise CheckpointError(f"{folder.path} is not a run folder: it has no {path.name}")
    try:
        return ModelConfig.model_validate(load_yaml(path).get("model") or {})
    except pydantic.ValidationError as error:
        complaint = describe_validation_error(error)
        raise CheckpointError(f"{path} does not describe a model: {complaint}") from error


def _masks_documents(folder: RunFolder) -> bool:
    data = load_yaml(folder.config_file).get("data")
    return isinstance(data, dict) and data.get("mask_documents") is True


def _check_settings(folder: RunFolder, config: ModelConfig, checkpoint: Checkpoint) -> None:
    """Shapes do not tell everything: a checkpoint carries the settings it was saved with."""
    saved = checkpoint.state.get("settings")
    values = saved.get("model") if isinstance(saved, dict) else None
    if not isinstance(values, dict):
        return
    for name, value in config.model_dump(mode="json", exclude={"dropout"}).items():
        if name in values and values[name] != value:
            raise CheckpointError(
                f"{folder.config_file} says model.{name} is {value!r:.60}, but "
                f"{checkpoint.path} was saved with {values[name]!r:.60}: put config.yaml back as "
                f"it was"
            )


def _find_checkpoint(folder: RunFolder, which: Literal["newest", "best"] | int) -> Checkpoint:
    checkpoints = CheckpointFolder(folder.checkpoints)
    if not checkpoints.steps():
        raise CheckpointError(f"{folder.path} has no checkpoint yet: train until one is written")
    if which == "newest":
        return checkpoints.newest()
    if which != "best" and type(which) is not int:
        raise ConfigError(
            f"checkpoint is {which!r:.60}; it must be newest, best or a step's number"
        )
    return checkpoints.best() if which == "best" else checkpoints.load(which)
