"""A run as a Hugging Face folder, which transformers loads without any code of ours."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from groundup.checkpoint import save_weights
from groundup.files import write_json_atomic, write_text_atomic
from groundup.generation.loading import CheckpointName
from groundup.interop.architectures import check_exportable, to_config_json
from groundup.interop.export_folder import CARD_NAME, DtypeName, Source, export_folder, open_source
from groundup.interop.model_card import write_card
from groundup.interop.weights import HUGGINGFACE_NAMES, cast_weights, to_foreign_weights
from groundup.tokenizer.formats.spelling import read_spelling

CONFIG_NAME = "config.json"
SINGLE_NAME = "model.safetensors"
INDEX_NAME = f"{SINGLE_NAME}.index.json"

_log = logging.getLogger(__name__)


def export_huggingface(
    run_folder: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    checkpoint: CheckpointName = "newest",
    dtype: DtypeName = "float32",
    force: bool = False,
    max_shard_bytes: int = 5_000_000_000,
) -> list[str]:
    """Write model, tokenizer, settings and card; gives the names of the files.

    Settings that no architecture there has are a ConfigError, before anything is written.

    force: replace an earlier export.
    max_shard_bytes: larger weights are split into files of at most this size.
    """
    source = open_source(run_folder, checkpoint)
    config_json = to_config_json(source.config, dtype)
    special_ids = source.special_ids.to_json()
    weights = to_foreign_weights(
        source.weights, source.config, HUGGINGFACE_NAMES, rotates_halves=True
    )
    weights = cast_weights(weights, getattr(torch, dtype))
    with export_folder(folder, force=force) as temporary:
        content_ids = _write_weights(temporary, weights, max_shard_bytes)
        write_json_atomic(temporary / CONFIG_NAME, {**config_json, **special_ids})
        generation = {key: value for key, value in special_ids.items() if value is not None}
        vocab = source.tokenizer.vocab
        if lacking := [id for id in range(source.config.vocab_size) if id not in vocab]:
            # Ids of the model that the tokenizer has no text for.
            generation["suppress_tokens"] = lacking
        write_json_atomic(temporary / "generation_config.json", generation)
        _write_tokenizer(temporary, source)
        tag = check_exportable(source.config).model_type
        card = write_card(
            source, library="transformers", tag=tag, dtype=dtype, content_ids=content_ids
        )
        write_text_atomic(temporary / CARD_NAME, card)
        return sorted(file.name for file in temporary.iterdir())


def _write_weights(
    folder: Path, tensors: Mapping[str, Tensor], max_shard_bytes: int
) -> dict[str, str]:
    """One file, or shards of at most so many bytes and their index; gives content ids.

    A tensor is never cut, so one that is greater has a file of its own.
    """
    # transformers refuses files that do not say so.
    metadata = {"format": "pt"}
    shards: list[dict[str, Tensor]] = [{}]
    num_bytes = 0
    for name, tensor in tensors.items():
        if shards[-1] and num_bytes + tensor.nbytes > max_shard_bytes:
            shards.append({})
            num_bytes = 0
        shards[-1][name] = tensor
        num_bytes += tensor.nbytes
    if len(shards) == 1:
        return {SINGLE_NAME: save_weights(folder / SINGLE_NAME, tensors, metadata)}
    content_ids, file_of = {}, {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        content_ids[name] = save_weights(folder / name, shard, metadata)
        file_of.update(dict.fromkeys(shard, name))
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(file_of.items()))}
    write_json_atomic(folder / INDEX_NAME, index)
    return content_ids


def _write_tokenizer(folder: Path, source: Source) -> None:
    ids = source.special_ids
    texts = {id: text for text, id in source.tokenizer.special_tokens.items()}
    roles = {"bos_token": ids.begin, "eos_token": ids.end, "pad_token": ids.padding}
    role_texts = {role: texts[id] for role, id in roles.items() if id in texts}
    for text in filter(_reads_as_spelled, texts.values()):
        _log.warning(
            "the tokenizers library takes the special token %s for spelled bytes when it decodes: "
            "its id is right, its text will not be",
            text,
        )
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": source.config.context_length,
        # Else decoding would drop spaces before punctuation.
        "clean_up_tokenization_spaces": False,
        **role_texts,
    }
    write_json_atomic(folder / "tokenizer_config.json", settings)
    # After the settings, into which it puts its chat template.
    source.tokenizer.save(folder / "tokenizer.json", "huggingface")
    write_json_atomic(folder / "special_tokens_map.json", role_texts)


def _reads_as_spelled(special_token: str) -> bool:
    try:
        return read_spelling(special_token) != special_token.encode()
    except UnicodeEncodeError:
        return False
