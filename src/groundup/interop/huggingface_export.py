"""A run as a Hugging Face folder, which transformers loads without any code of ours."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import torch

from groundup.files import write_json_atomic, write_text_atomic
from groundup.interop.llama import architecture_of, to_config_json
from groundup.interop.model_card import write_card
from groundup.interop.run_export import (
    CARD_NAME,
    CheckpointName,
    DtypeName,
    Source,
    export_folder,
    open_source,
)
from groundup.interop.safetensors_files import MAX_SHARD_BYTES, write_weight_files
from groundup.interop.weights import HUGGINGFACE_NAMES, cast_weights, to_foreign_weights
from groundup.tokenizer.formats.spelling import read_spelling

CONFIG_NAME = "config.json"

_log = logging.getLogger(__name__)


def export_huggingface(
    run_folder: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    checkpoint: CheckpointName = "newest",
    dtype: DtypeName = "float32",
    force: bool = False,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> list[str]:
    """Write model, tokenizer, settings and card; gives the names of the files.

    Settings that no architecture there has are a ConfigError, before anything is written.

    run_folder: the run to export.
    folder: where the files go.
    checkpoint: newest, best, or the number of a step.
    dtype: of the weights.
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
        content_ids = write_weight_files(temporary, weights, max_shard_bytes)
        write_json_atomic(temporary / CONFIG_NAME, {**config_json, **special_ids})
        generation = {key: value for key, value in special_ids.items() if value is not None}
        vocab = source.tokenizer.vocab
        if lacking := [id for id in range(source.config.vocab_size) if id not in vocab]:
            # Ids of the model that the tokenizer has no text for.
            generation["suppress_tokens"] = lacking
        write_json_atomic(temporary / "generation_config.json", generation)
        _write_tokenizer(temporary, source)
        card = write_card(
            source,
            library="transformers",
            tag=architecture_of(source.config).model_type,
            dtype=dtype,
            content_ids=content_ids,
        )
        write_text_atomic(temporary / CARD_NAME, card)
        return sorted(file.name for file in temporary.iterdir())


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
