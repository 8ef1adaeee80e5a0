"""A Hugging Face checkpoint of the Llama family as a run folder of ours.

The run has one checkpoint, at step 0, with an optimizer that has not moved: `generate`, `serve`
and `export` take it, and `train --resume` continues it on data of its tokenizer.
"""

from __future__ import annotations

import datetime
import logging
import os
import platform
import re
from pathlib import Path
from typing import Any

import torch

from groundup import __version__
from groundup.checkpoint import (
    CheckpointFolder,
    capture_random_state,
    load_weights,
    restore_random_state,
)
from groundup.config import load_settings
from groundup.errors import CheckpointError, ConfigError, TokenizerError
from groundup.files import atomic_folder, hash_file
from groundup.generation.special_ids import IMPORTED_KEY, SpecialIds
from groundup.interop.huggingface_export import CONFIG_NAME
from groundup.interop.llama import Architecture, read_config_json
from groundup.interop.safetensors_files import read_json_object, read_weight_shapes
from groundup.interop.weights import (
    HUGGINGFACE_NAMES,
    check_foreign_shapes,
    from_foreign_weights,
)
from groundup.model import ModelConfig, TransformerLM
from groundup.optim.build import build_optimizer
from groundup.runs.config import NAME_PATTERN, RunConfig
from groundup.runs.folder import RunFolder
from groundup.runtime import set_seed
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.chat_template import ChatTemplate
from groundup.training.state import TrainingState

# Old checkpoints carry the frequencies of the rotation, which follow from its settings.
_DERIVED = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")

_THEIR_TABLE = "model.embed_tokens.weight"

# What is read besides the weights, where it is there.
_SMALL_FILES = (
    CONFIG_NAME,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "vocab.bpe",
)

_log = logging.getLogger(__name__)


def import_huggingface(
    folder: str | os.PathLike[str],
    name: str,
    *,
    runs_folder: str | os.PathLike[str] = "runs",
    context_length: int | None = None,
) -> Path:
    """Make the run folder `name` from a checkpoint folder; gives its path.

    Everything is checked before the run folder appears, which is at once and whole.

    folder: with config.json, the weights in safetensors and the tokenizer.
    runs_folder: where the run folder is made.
    context_length: of the new run; that of the checkpoint by default.
    """
    folder = Path(folder)
    destination = _new_run_folder(name, Path(runs_folder))
    value = read_json_object(folder / CONFIG_NAME)
    config, architecture = read_config_json(value, folder / CONFIG_NAME, context_length)
    tokenizer = _read_tokenizer(folder, config)
    weights, files = _read_weights(folder, config)
    run_config = load_settings(
        RunConfig,
        overrides={
            "name": name,
            "runs_folder": str(runs_folder),
            "model": config.model_dump(),
            "data.tokenizer": str(destination / "tokenizer.json"),
        },
    )
    environment = _describe_environment(folder, value, architecture, files, tokenizer)
    with atomic_folder(destination) as temporary:
        _save_checkpoint(temporary, run_config, weights)
        RunFolder(temporary).begin(run_config, tokenizer, environment)
    return destination


def is_import_of(folder: Path, run: RunFolder) -> bool:
    """Was the run made from the checkpoint folder as it is now, and not trained since?"""
    imported = run.read_environment().get(IMPORTED_KEY)
    if not isinstance(imported, dict) or CheckpointFolder(run.checkpoints).steps() != [0]:
        return False
    _, files = read_weight_shapes(folder)
    return imported.get("files") == _hash_files(folder, files)


def _new_run_folder(name: str, runs_folder: Path) -> Path:
    if not re.fullmatch(NAME_PATTERN, name):
        raise ConfigError(
            f"the name {name!r:.80} is not a valid run name: use letters, digits and . _ + = - "
            f"after a first letter or digit"
        )
    destination = runs_folder / name
    if destination.exists():
        raise ConfigError(f"{destination} exists: choose another --name for the imported run")
    return destination


def _read_tokenizer(folder: Path, config: ModelConfig) -> Tokenizer:
    is_known = any((folder / name).is_file() for name in ("tokenizer.json", "vocab.json"))
    if not is_known and (folder / "tokenizer.model").is_file():
        raise CheckpointError(
            f"{folder} has its tokenizer as tokenizer.model alone, a SentencePiece model; groundup "
            f"knows byte-level BPE: take a checkpoint whose tokenizer.json is that"
        )
    tokenizer = Tokenizer.load(folder)
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"the tokenizer of {folder} has ids up to {tokenizer.vocab_size - 1}, but vocab_size "
            f"in {CONFIG_NAME} is {config.vocab_size}: they do not belong together"
        )
    if tokenizer.chat_template is not None:
        try:
            ChatTemplate(tokenizer.chat_template)
        except TokenizerError as error:
            _log.warning("%s before you chat with this model", error)
    return tokenizer


def _read_weights(folder: Path, config: ModelConfig) -> tuple[dict[str, torch.Tensor], list[Path]]:
    shapes, files = read_weight_shapes(folder)
    shapes = {name: shape for name, shape in shapes.items() if not _DERIVED.fullmatch(name)}
    if config.tie_embeddings and shapes.get("lm_head.weight") == shapes.get(_THEIR_TABLE):
        shapes.pop("lm_head.weight", None)
    check_foreign_shapes(shapes, config, HUGGINGFACE_NAMES)
    tensors = {
        name: value
        for file in files
        for name, value in load_weights(file).items()
        if not _DERIVED.fullmatch(name)
    }
    if config.tie_embeddings and "lm_head.weight" in tensors:
        head = tensors.pop("lm_head.weight")
        if not torch.equal(head, tensors[_THEIR_TABLE]):
            raise CheckpointError(
                f"{folder} says tie_word_embeddings, but its lm_head.weight is not its "
                f"{_THEIR_TABLE}: fix that setting in {CONFIG_NAME}"
            )
    return from_foreign_weights(tensors, config, HUGGINGFACE_NAMES), files


def _describe_environment(
    folder: Path,
    value: dict[str, Any],
    architecture: Architecture,
    files: list[Path],
    tokenizer: Tokenizer,
) -> dict[str, Any]:
    # For special ids generation_config.json overrules config.json, as in transformers.
    path = folder / "generation_config.json"
    told = {**value, **(read_json_object(path) if path.is_file() else {})}
    special_ids = SpecialIds.from_json(told, tokenizer)
    if (text := _find_prefix(folder)) is not None:
        _log.warning(
            "the checkpoint's tokenizer puts %s before every text, and groundup does not: begin "
            "prompts with it",
            text,
        )
    dtype = value.get("dtype", value.get("torch_dtype"))
    return {
        "groundup": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "started": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        IMPORTED_KEY: {
            "format": "huggingface",
            "folder": folder.resolve().name,
            "architecture": architecture.class_name,
            "dtype": dtype if isinstance(dtype, str) else None,
            "special_ids": special_ids.to_json(),
            "files": _hash_files(folder, files),
        },
    }


def _hash_files(folder: Path, weights: list[Path]) -> dict[str, str]:
    """The content ids of all files that an import reads, by name."""
    files = {*weights, *(folder / name for name in _SMALL_FILES)}
    return {file.name: hash_file(file) for file in sorted(files) if file.is_file()}


def _find_prefix(folder: Path) -> str | None:
    """The special token that the tokenizer's post-processor begins every text with."""
    path = folder / "tokenizer.json"
    processor = read_json_object(path).get("post_processor") if path.is_file() else None
    if not isinstance(processor, dict):
        return None
    parts = processor.get("processors")
    for part in [processor, *(parts if isinstance(parts, list) else [])]:
        template = part.get("single") if isinstance(part, dict) else None
        first = template[0] if isinstance(template, list) and template else None
        if isinstance(first, dict) and isinstance(first.get("SpecialToken"), dict):
            return str(first["SpecialToken"].get("id"))
    return None


def _save_checkpoint(folder: Path, config: RunConfig, weights: dict[str, torch.Tensor]) -> None:
    # An optimizer that has not moved has no tensors, so it need not see the weights.
    model = TransformerLM.from_config(config.model, device="meta")
    optimizer = build_optimizer(model, config.optimizer)
    counters = TrainingState(model, optimizer, config.tokens_per_step).counters()
    counters["random"] = _first_random_state(config.seed)
    checkpoints = CheckpointFolder(RunFolder(folder).checkpoints)
    checkpoints.save(0, weights, optimizer.state_dict(), counters)


def _first_random_state(seed: int) -> dict[str, Any]:
    """The random state that a run with this seed begins with; that of the process stays."""
    before = capture_random_state()
    try:
        set_seed(seed)
        return capture_random_state()
    finally:
        restore_random_state(before)
