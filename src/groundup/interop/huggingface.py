"""Exports a run to a folder that transformers loads, and imports such a folder as a run.

An export works without groundup; models that transformers does not know come with a modeling file.
Models of the Llama family can be imported; the run has one checkpoint at step 0 without optimizer
state, for `generate`, `serve`, `export` and `train --from`.
"""

import contextlib
import logging
import os
import re
from pathlib import Path
from typing import Any

import torch

from groundup.checkpoint import CheckpointFolder, load_weights, save_weights
from groundup.errors import CheckpointError, ConfigError
from groundup.files import (
    check_plain_file,
    hash_file,
    parse_json,
    read_plain_file,
    write_json_atomic,
    write_text_atomic,
)
from groundup.generation.loading import CheckpointName, save_run
from groundup.generation.request import Sampler
from groundup.generation.special_ids import IMPORTED_KEY, SpecialIds
from groundup.interop.architectures import (
    GROUNDUP,
    MODELING_NAME,
    read_config_json,
    to_config_json,
)
from groundup.interop.export_folder import DtypeName, Source, export_folder
from groundup.interop.model_card import write_card
from groundup.interop.weights import (
    HUGGINGFACE_NAMES,
    OWN_NAMES,
    Names,
    cast_weights,
    from_foreign_weights,
    to_foreign_weights,
)
from groundup.model import ModelConfig, TransformerLM
from groundup.runs.config import NAME_PATTERN
from groundup.runs.folder import RunFolder
from groundup.tokenizer import Tokenizer

CONFIG_NAME = "config.json"
SINGLE_NAME = "model.safetensors"
INDEX_NAME = f"{SINGLE_NAME}.index.json"

_THEIR_TABLE = "model.embed_tokens.weight"

# Files read besides the weights, if they exist.
_SMALL_FILES = (
    *(CONFIG_NAME, "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("chat_template.jinja", "vocab.json", "merges.txt", "vocab.bpe"),
)

_log = logging.getLogger(__name__)


def export_huggingface(
    run_folder: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    checkpoint: CheckpointName = "newest",
    dtype: DtypeName = "float32",
    force: bool = False,
) -> list[str]:
    """Write model, tokenizer, settings and model card; return the names of the files.

    Raises ConfigError for settings that transformers does not support, before anything is written.
    """
    source = Source(run_folder, checkpoint)
    config_json = to_config_json(source.config, dtype)
    kind, special_ids = config_json["model_type"], source.special_ids.to_json()
    is_own = kind == GROUNDUP.model_type
    names = OWN_NAMES if is_own else HUGGINGFACE_NAMES
    weights = to_foreign_weights(
        source.model.state_dict(), source.config, names, rotates_halves=not is_own
    )
    weights = cast_weights(weights, getattr(torch, dtype))
    with export_folder(folder, force=force) as temporary:
        # transformers requires this entry.
        save_weights(temporary / SINGLE_NAME, weights, {"format": "pt"})
        write_json_atomic(temporary / CONFIG_NAME, {**config_json, **special_ids})
        generation = {key: value for key, value in special_ids.items() if value is not None}
        if source.sampler.temperature > 0:
            # In transformers, the default top_k is 50, and 0 turns it off.
            sampling = source.sampler.model_dump(exclude_defaults=True)
            generation |= {"do_sample": True, "top_k": 0, **sampling}
        vocab = source.tokenizer.vocab
        if unused := [id for id in range(source.config.vocab_size) if id not in vocab]:
            # Ids of the model that the tokenizer does not have.
            generation["suppress_tokens"] = unused
        write_json_atomic(temporary / "generation_config.json", generation)
        if is_own:
            code = Path(__file__).with_name(MODELING_NAME).read_text("utf-8")
            write_text_atomic(temporary / MODELING_NAME, code)
        _write_tokenizer(temporary, source)
        write_card(temporary, source, tag=kind, dtype=dtype, weights=SINGLE_NAME)
        return sorted(file.name for file in temporary.iterdir())


def _write_tokenizer(folder: Path, source: Source) -> None:
    ids = source.special_ids
    texts = {id: text for text, id in source.tokenizer.special_tokens.items()}
    roles = {"bos_token": ids.begin, "eos_token": ids.end, "pad_token": ids.padding}
    role_texts = {role: texts[id] for role, id in roles.items() if id in texts}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": source.config.context_length,
        # Otherwise decoding would drop spaces before punctuation.
        "clean_up_tokenization_spaces": False,
        **role_texts,
    }
    write_json_atomic(folder / "tokenizer_config.json", settings)
    # After tokenizer_config.json, to which it adds the chat template.
    source.tokenizer.save(folder / "tokenizer.json", "huggingface")
    write_json_atomic(folder / "special_tokens_map.json", role_texts)


def import_huggingface(
    folder: str | os.PathLike[str],
    name: str,
    *,
    runs_folder: str | os.PathLike[str] = "runs",
    context_length: int | None = None,
) -> Path:
    """Create the run folder `name` from a checkpoint folder; return its path.

    The run folder is created atomically, after all checks. If it exists, it must be the import of
    this checkpoint.
    """
    folder = Path(folder)
    if not re.fullmatch(NAME_PATTERN, name):
        raise ConfigError(f"invalid run name {name!r:.80}: use letters, digits and . _ + = -")
    destination = Path(runs_folder) / name
    value = _read_json(folder / CONFIG_NAME)
    config, architecture = read_config_json(value, folder / CONFIG_NAME, context_length)
    if destination.exists():
        run = RunFolder(destination)
        if is_import_of(folder, run) and run.read_config().model == config:
            return destination
        raise ConfigError(f"{destination} exists: choose another --name for the imported run")
    tokenizer = _read_tokenizer(folder, config)
    files = _find_weights(folder)
    names = OWN_NAMES if architecture is GROUNDUP else HUGGINGFACE_NAMES
    weights = _read_weights(files, config, names)
    # Special ids in generation_config.json override config.json, as in transformers.
    path = folder / "generation_config.json"
    generation = _read_json(path) if path.is_file() else {}
    special_ids = SpecialIds.from_json({**value, **generation}, tokenizer)
    dtype = value.get("dtype", value.get("torch_dtype"))
    imported = {
        "format": "huggingface",
        "folder": folder.resolve().name,
        "architecture": architecture.class_name,
        "dtype": dtype if isinstance(dtype, str) else None,
        "special_ids": special_ids.to_json(),
        "files": _hash_files(folder, files),
    }
    model = TransformerLM.from_config(config, device="meta")
    model.load_state_dict(weights, assign=True)
    environment = {IMPORTED_KEY: imported}
    save_run(destination, model, tokenizer, 0, special_ids, environment, _read_sampler(generation))
    return destination


def is_import_of(folder: Path, run: RunFolder) -> bool:
    """Whether the run is an untrained import of the checkpoint folder in its current state."""
    imported = run.read_environment().get(IMPORTED_KEY)
    if not isinstance(imported, dict) or CheckpointFolder(run.checkpoints).steps() != [0]:
        return False
    return imported.get("files") == _hash_files(folder, _find_weights(folder))


def _read_sampler(generation: dict[str, Any]) -> Sampler | None:
    """The checkpoint's default sampling parameters, if valid."""
    given = {name: generation[name] for name in Sampler.model_fields if generation.get(name)}
    with contextlib.suppress(ConfigError):
        return Sampler(**given) if given else None
    return None


def _read_tokenizer(folder: Path, config: ModelConfig) -> Tokenizer:
    tokenizer = Tokenizer.load(folder)
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"the tokenizer has ids up to {tokenizer.vocab_size - 1}, but vocab_size is "
            f"{config.vocab_size} in {folder / CONFIG_NAME}"
        )
    if (text := _find_prefix(folder)) is not None:
        message = "begin prompts with %s: the checkpoint's tokenizer adds it to every text"
        _log.warning(message, text)
    return tokenizer


def _read_weights(files: list[Path], config: ModelConfig, names: Names) -> dict[str, torch.Tensor]:
    for file in files:
        try:
            check_plain_file(file, file.parent)
        except OSError as error:
            raise CheckpointError(f"{file} cannot be read: {error.strerror}") from None
    tensors = {name: one for file in files for name, one in load_weights(file).items()}
    head, table = (tensors.get(name) for name in ("lm_head.weight", _THEIR_TABLE))
    if config.tie_embeddings and head is not None and table is not None:
        if not torch.equal(head, table):
            raise CheckpointError(
                f"{CONFIG_NAME} has tie_word_embeddings, but lm_head.weight is not {_THEIR_TABLE}"
            )
        del tensors["lm_head.weight"]
    return from_foreign_weights(tensors, config, names)


def _find_weights(folder: Path) -> list[Path]:
    """The safetensors files with the weights; pickled weights are not supported."""
    single, index = folder / SINGLE_NAME, folder / INDEX_NAME
    if not index.is_file():
        if single.is_file():
            return [single]
        raise CheckpointError(
            f"{folder} has neither {SINGLE_NAME} nor {INDEX_NAME}: pickled weights are not "
            f"supported, convert them to safetensors"
        )
    file_of = _read_json(index).get("weight_map")
    if not isinstance(file_of, dict) or not file_of:
        raise CheckpointError(f"{index} has no weight_map: download the checkpoint again")
    for name in file_of.values():
        # Untrusted: it may name only files in its own folder.
        if not isinstance(name, str) or Path(name).name != name or name in ("", ".", ".."):
            raise CheckpointError(f"{index} names {name!r:.60}, which is not in its folder")
    return [folder / name for name in sorted(set(file_of.values()))]


def _read_json(path: Path) -> dict[str, Any]:
    """Read a small JSON file of a checkpoint."""
    try:
        value = parse_json(read_plain_file(path, path.parent))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged or incomplete: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} is not a JSON object: download the checkpoint again")
    return value


def _hash_files(folder: Path, weights: list[Path]) -> dict[str, str]:
    """The content ids of all files that an import reads, by name."""
    files = {*weights, *(folder / name for name in _SMALL_FILES)}
    return {file.name: hash_file(file) for file in sorted(files) if file.is_file()}


def _find_prefix(folder: Path) -> str | None:
    """The special token that the tokenizer's post-processor prepends to every text."""
    path = folder / "tokenizer.json"
    processor: Any = _read_json(path).get("post_processor") if path.is_file() else None
    with contextlib.suppress(AttributeError, TypeError, LookupError):
        for part in [processor, *processor.get("processors", [])]:
            if part["type"] == "TemplateProcessing":
                return str(part["single"][0]["SpecialToken"]["id"])
    return None
