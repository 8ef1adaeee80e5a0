"""A run as a Hugging Face folder, which transformers loads: without any code of ours, or by the
modeling file that goes along with a model that it does not know."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from groundup.checkpoint import save_weights
from groundup.files import hash_file, write_json_atomic, write_text_atomic
from groundup.generation.loading import CheckpointName
from groundup.interop.architectures import GROUNDUP, MODELING_NAME, to_config_json
from groundup.interop.export_folder import CARD_NAME, DtypeName, Source, export_folder, open_source
from groundup.interop.model_card import write_card
from groundup.interop.weights import HUGGINGFACE_NAMES, OWN_NAMES, cast_weights, to_foreign_weights

CONFIG_NAME = "config.json"
SINGLE_NAME = "model.safetensors"
INDEX_NAME = f"{SINGLE_NAME}.index.json"


def export_huggingface(
    run_folder: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    checkpoint: CheckpointName = "newest",
    dtype: DtypeName = "float32",
    force: bool = False,
) -> list[str]:
    """Write model, tokenizer, settings and card; gives the names of the files.

    Settings that no architecture there has are a ConfigError, before anything is written. `force`
    replaces an earlier export.
    """
    source = open_source(run_folder, checkpoint)
    config_json = to_config_json(source.config, dtype)
    is_own = config_json["model_type"] == GROUNDUP.model_type
    special_ids = source.special_ids.to_json()
    names = OWN_NAMES if is_own else HUGGINGFACE_NAMES
    weights = to_foreign_weights(source.weights, source.config, names, rotates_halves=not is_own)
    weights = cast_weights(weights, getattr(torch, dtype))
    with export_folder(folder, force=force) as temporary:
        # transformers refuses files that do not say so.
        save_weights(temporary / SINGLE_NAME, weights, {"format": "pt"})
        weights_id = hash_file(temporary / SINGLE_NAME)
        write_json_atomic(temporary / CONFIG_NAME, {**config_json, **special_ids})
        generation = {key: value for key, value in special_ids.items() if value is not None}
        if source.sampler.temperature > 0:
            # There top_k is 50 if nothing is said, and 0 for all.
            sampling = source.sampler.model_dump(exclude_defaults=True)
            generation |= {"do_sample": True, "top_k": 0, **sampling}
        vocab = source.tokenizer.vocab
        if lacking := [id for id in range(source.config.vocab_size) if id not in vocab]:
            # Ids of the model that the tokenizer has no text for.
            generation["suppress_tokens"] = lacking
        write_json_atomic(temporary / "generation_config.json", generation)
        if is_own:
            code = Path(__file__).with_name(MODELING_NAME).read_text("utf-8")
            write_text_atomic(temporary / MODELING_NAME, code)
        _write_tokenizer(temporary, source)
        tag = config_json["model_type"]
        card = write_card(source, tag=tag, dtype=dtype, content_ids={SINGLE_NAME: weights_id})
        write_text_atomic(temporary / CARD_NAME, card)
        return sorted(file.name for file in temporary.iterdir())


def _write_tokenizer(folder: Path, source: Source) -> None:
    ids = source.special_ids
    texts = {id: text for text, id in source.tokenizer.special_tokens.items()}
    roles = {"bos_token": ids.begin, "eos_token": ids.end, "pad_token": ids.padding}
    role_texts = {role: texts[id] for role, id in roles.items() if id in texts}
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
