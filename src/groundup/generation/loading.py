"""Load a model and its tokenizer from a run folder, and save them to one."""

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch

from groundup import __version__
from groundup.checkpoint import Checkpoint, CheckpointFolder, check_shapes, restore_model
from groundup.config import load_settings
from groundup.errors import CheckpointError, ConfigError
from groundup.files import atomic_folder, write_json_atomic
from groundup.generation.request import Sampler
from groundup.generation.special_ids import SPECIAL_IDS_KEY, SpecialIds, find_special_ids
from groundup.model import ModelConfig, TransformerLM
from groundup.model.parts import swapped_parts
from groundup.model.transformer import weight_shapes
from groundup.planner import check_model_memory
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runs.outcome import Outcome
from groundup.runtime import memory_bytes
from groundup.tokenizer import Tokenizer

CheckpointName = Literal["newest", "best"] | int


def load_run(
    run: str | os.PathLike[str],
    checkpoint: CheckpointName = "newest",
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    model: TransformerLM | None = None,
) -> tuple[TransformerLM, Tokenizer, int, SpecialIds, Sampler]:
    """Return the arguments of `LanguageModel`: model, tokenizer, step, special ids and sampler.

    Checks settings, shapes and memory before it builds the model.
    """
    folder = RunFolder(run)
    config = folder.read_config({} if model is None else swapped_parts(model)).model
    if model is not None and model.config != config:
        raise ConfigError(f"the model's settings differ from those in {folder.config_file}")
    tokenizer = Tokenizer.load(folder.tokenizer_file)
    found = _find_checkpoint(folder, checkpoint)
    shapes = weight_shapes(config)
    if model is not None:
        shapes = {name: tuple(one.shape) for name, one in model.state_dict().items()}
    weights = found.model_state()
    check_shapes(shapes, weights)
    if torch.device(device or "cpu").type == "cpu":
        check_model_memory(config, memory_bytes(), num_sequences=1)
    if model is None:
        model = TransformerLM.from_config(config, device=device)
    model = model.to(device)
    restore_model(model, weights)
    _check_settings(folder, config, found)
    if dtype is not None:
        model = model.to(dtype)
    special_ids = find_special_ids(tokenizer, folder.read_environment())
    file = folder.generation_file
    sampler = load_settings(Sampler, file if file.is_file() else None)
    return model.eval(), tokenizer, found.step, special_ids, sampler


def save_run(
    path: str | os.PathLike[str],
    model: TransformerLM,
    tokenizer: Tokenizer,
    step: int,
    special_ids: SpecialIds,
    environment: Mapping[str, Any] | None = None,
    sampler: Sampler | None = None,
) -> None:
    """Atomically write a run folder with one checkpoint of this model, which cannot be resumed: it
    has no optimizer state."""
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
    with atomic_folder(destination) as temporary:
        folder = RunFolder(temporary)
        CheckpointFolder(folder.checkpoints).save(
            step,
            model.state_dict(),
            {"state": {}, "param_groups": []},
            {"settings": config.model_dump(mode="json")},
        )
        known = {"groundup": __version__, SPECIAL_IDS_KEY: special_ids.to_json()}
        sampling = None if sampler is None else sampler.model_dump()
        folder.begin(config, tokenizer, {**known, **(environment or {})}, sampling)
        write_json_atomic(folder.outcome_file, asdict(Outcome("finished", step)))


def _check_settings(folder: RunFolder, config: ModelConfig, checkpoint: Checkpoint) -> None:
    """Compare the model settings with those stored in the checkpoint, which shapes may not show."""
    saved = (checkpoint.state.get("settings") or {}).get("model") or {}
    for name, value in config.model_dump(mode="json", exclude={"dropout"}).items():
        if saved.get(name, value) != value:
            raise CheckpointError(
                f"{folder.config_file} says model.{name} is {value!r:.60}, but "
                f"{checkpoint.path} was saved with {saved[name]!r:.60}: restore config.yaml"
            )


def _find_checkpoint(folder: RunFolder, which: CheckpointName) -> Checkpoint:
    checkpoints = CheckpointFolder(folder.checkpoints, weights_only=True)
    if which == "newest":
        return checkpoints.newest()
    return checkpoints.best() if which == "best" else checkpoints.load(which)
