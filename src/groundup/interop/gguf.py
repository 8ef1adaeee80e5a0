"""Exports a run as a GGUF file for llama.cpp and the tools around it, with the `gguf` library.

llama.cpp's llama architecture rotates adjacent pairs like ours; its qwen3 rotates halves. A
tokenizer whose pre-tokenization llama.cpp would not reproduce is refused.
"""

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from groundup.errors import ConfigError, MissingExtraError, TokenizerError
from groundup.files import atomic_path
from groundup.generation.loading import CheckpointName
from groundup.generation.special_ids import find_turn_end
from groundup.interop.architectures import QWEN3, check_exportable, express
from groundup.interop.export_folder import DtypeName, Source
from groundup.interop.model_card import describe, lineage
from groundup.interop.weights import GGUF_NAMES, cast_weights, to_foreign_weights
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.definition import TokenizerDefinition
from groundup.tokenizer.formats.spelling import spell_merges, spell_vocab

if TYPE_CHECKING:
    from gguf import GGUFWriter

GgufDtype = DtypeName | Literal["q8_0", "q4_0"]

# GGUF types of tensors; also the suffixes of file types.
_KINDS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "q8_0": "Q8_0", "q4_0": "Q4_0"}
_BLOCK_VALUES = 32
"""Quantization block size: values of a matrix row that share a scale."""
# Most sensitive to 4-bit quantization.
_TABLES = ("token_embd.weight", "output.weight")

# GGUF token types.
_NORMAL, _CONTROL, _UNUSED = 1, 3, 5
# llama.cpp's names of our split patterns. cl100k has no equivalent: similar ones split white space
# at the end of a text differently. Nor has o200k: llama.cpp's gpt-4o treats only ASCII letters as
# cased and does not allow marks within words.
_PRE_TOKENIZERS = {
    "gpt2": "gpt-2",
    "llama3": "llama-bpe",
    "qwen2": "qwen2",
    "deepseek": "deepseek-v3",
}


def export_gguf(
    run_folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    checkpoint: CheckpointName = "newest",
    dtype: GgufDtype = "float32",
    force: bool = False,
) -> list[str]:
    """Write a GGUF file with the model's lineage in its metadata; return its name in a list.

    dtype: of the matrices; vectors stay in float32, as llama.cpp requires. q8_0 and q4_0 have 8 and
        4 bits per value and one scale per 32 values; with q4_0, the embedding and output matrices
        are q8_0, and a matrix whose rows are not a multiple of 32 is bfloat16.
    """
    file = Path(out)
    if file.suffix != ".gguf" or file.is_dir():
        raise ConfigError(f"{file} must be a file name that ends in .gguf")
    if file.exists() and not force:
        raise ConfigError(f"{file} exists: choose another name, or replace it with --force")
    source = Source(run_folder, checkpoint)
    with atomic_path(file) as temporary:
        write_gguf(temporary, source, dtype)
    return [file.name]


def write_gguf(path: Path, source: Source, dtype: GgufDtype) -> None:
    """Write the file; see `export_gguf`."""
    try:
        from gguf import GGMLQuantizationType, GGUFWriter
        from gguf.quants import quantize
    except ImportError:
        raise MissingExtraError("writing GGUF files", "gguf") from None
    architecture = check_exportable(source.config)
    if source.special_ids.end is None:
        raise ConfigError("the tokenizer has no end-of-text token: llama.cpp would use id 11")
    weights = to_foreign_weights(
        source.model.state_dict(), source.config, GGUF_NAMES, rotates_halves=architecture is QWEN3
    )
    # llama.cpp may sample any id that has a row, also one without a token.
    for name in weights.keys() & set(_TABLES):
        weights[name] = weights[name][: source.tokenizer.vocab_size]
    writer = GGUFWriter(path, architecture.model_type)
    try:
        _add_settings(writer, source, dtype)
        _add_vocabulary(writer, source)
        cast = cast_weights(weights, getattr(torch, dtype, torch.float32), keep_vectors=True)
        for name, weight in cast.items():
            kind = GGMLQuantizationType[_kind_of(name, weight, dtype)]
            data = quantize(weight.float().contiguous().numpy(), kind)
            writer.add_tensor(name, data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _kind_of(name: str, weight: torch.Tensor, dtype: GgufDtype) -> str:
    if weight.ndim == 1:
        return "F32"
    if dtype in ("q8_0", "q4_0") and weight.shape[1] % _BLOCK_VALUES:
        return "BF16"
    return "Q8_0" if dtype == "q4_0" and name in _TABLES else _KINDS[dtype]


def _add_settings(writer: "GGUFWriter", source: Source, dtype: GgufDtype) -> None:
    import gguf

    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(source.name)
    writer.add_description(describe(source, dtype))
    for key, text in lineage(source):
        writer.add_string(f"groundup.{key.replace(' ', '_')}", text)
    kind = _KINDS[dtype]
    writer.add_file_type(gguf.LlamaFileType[f"{'ALL' if kind == 'F32' else 'MOSTLY'}_{kind}"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    sizes = express(source.config, "gguf") | {"vocab_size": source.tokenizer.vocab_size}
    for name, value in sizes.items():
        getattr(writer, f"add_{name}")(value)
    for add in (writer.add_key_length, writer.add_value_length, writer.add_rope_dimension_count):
        add(source.config.d_head)


def _add_vocabulary(writer: "GGUFWriter", source: Source) -> None:
    """Add the tokenizer; refuse it if its ids would differ."""
    definition = source.tokenizer.definition
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(find_pre_tokenizer(definition))
    if not definition.merges:
        raise TokenizerError("the tokenizer has no merges, and llama.cpp requires some")
    spelled = spell_vocab(definition, "GGUF")
    tokens = [f"[unused {id}]" for id in range(source.tokenizer.vocab_size)]
    types = [_UNUSED] * len(tokens)
    for text, id in spelled.items():
        tokens[id], types[id] = text, _NORMAL
    for id in definition.special_tokens.values():
        types[id] = _CONTROL
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(spell_merges(definition, spelled))
    ids = source.special_ids
    for known, add in (
        # Without one, llama.cpp would use id 11.
        (source.begin_id, writer.add_bos_token_id),
        (ids.end, writer.add_eos_token_id),
        (ids.padding, writer.add_pad_token_id),
        (find_turn_end(source.tokenizer), writer.add_eot_token_id),
    ):
        if known is not None:
            add(known)
    if source.tokenizer.chat_template is not None:
        writer.add_chat_template(source.tokenizer.chat_template)
    # Our tokenizers add nothing to a text.
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)


def find_pre_tokenizer(definition: TokenizerDefinition) -> str:
    """Return llama.cpp's pre-tokenizer that splits text like this tokenizer, or raise."""
    pattern = definition.pattern
    found = _PRE_TOKENIZERS.get(pattern.name)
    if found is None:
        raise TokenizerError(
            f"llama.cpp has no pre-tokenizer for the split pattern {pattern.name}, only for "
            f"{', '.join(_PRE_TOKENIZERS)}: export to huggingface instead"
        )
    # For llama3's pattern, llama.cpp encodes a pre-token in the vocabulary as that token.
    if definition.whole_words != (pattern.name == "llama3"):
        _check_merges_reach_whole_words(definition)
    return found


def _check_merges_reach_whole_words(definition: TokenizerDefinition) -> None:
    """Check that the merges produce every whole word, so that ignoring them changes no ids."""
    words = [token.decode(errors="ignore") for token in definition.ordinary_tokens().values()]
    by_merges, whole = (
        Tokenizer.from_definition(dataclasses.replace(definition, whole_words=whole_words))
        for whole_words in (False, True)
    )
    for word in words:
        if by_merges.encode(word) != whole.encode(word):
            raise TokenizerError(
                f"llama.cpp would encode {word!r:.60} differently, because of how it treats whole "
                f"words with the pattern {definition.pattern.name}: export to huggingface instead"
            )
