"""A run as a GGUF file, which llama.cpp and the tools around it load. Written with `gguf`.

llama.cpp rotates neighbours in its llama architecture, as we do, and halves in its qwen3. A
tokenizer that it would not split text with as we do is refused.
"""

import contextlib
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

# Of tensors and, with a word before it, of files.
_KINDS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "q8_0": "Q8_0", "q4_0": "Q4_0"}
_BLOCK_VALUES = 32
"""Values that share a scale, in one row of a matrix."""
# So few bits cost them most.
_TABLES = ("token_embd.weight", "output.weight")

# Types of tokens.
_NORMAL, _CONTROL, _UNUSED = 1, 3, 5
# What llama.cpp calls our split patterns. cl100k has none: its relatives there cut white space at
# the end of a text otherwise. Nor has o200k: llama.cpp's gpt-4o knows the case of ASCII letters
# alone, and no marks within words.
_PRE_TOKENIZERS = {
    "gpt2": "gpt-2",
    "llama3": "llama-bpe",
    "qwen2": "qwen2",
    "deepseek": "deepseek-v3",
}
# Where a pre-token that is a vocabulary entry is that token there, whatever the merges say.
_WHOLE_WORDS = ("llama3",)


def export_gguf(
    run_folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    checkpoint: CheckpointName = "newest",
    dtype: GgufDtype = "float32",
    force: bool = False,
) -> list[str]:
    """Write a GGUF file, which holds the lineage of the model as well; gives its name.

    dtype: of the matrices; vectors stay in float32, as llama.cpp wants them. q8_0 and q4_0 have 8
        and 4 bits a value and a scale for 32; with q4_0 the tables are in q8_0, and a matrix whose
        rows are no multiple of 32 is in bfloat16.
    force: replace a file that is there.
    """
    file = Path(out)
    if file.suffix != ".gguf" or file.is_dir():
        raise ConfigError(f"{file} must be the name of a file, and end in .gguf")
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
        raise ConfigError("the tokenizer has no end of text: llama.cpp would take id 11 for it")
    weights = to_foreign_weights(
        source.model.state_dict(), source.config, GGUF_NAMES, rotates_halves=architecture is QWEN3
    )
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
    for name, value in express(source.config, "gguf").items():
        getattr(writer, f"add_{name}")(value)
    for add in (writer.add_key_length, writer.add_value_length, writer.add_rope_dimension_count):
        add(source.config.d_head)


def _add_vocabulary(writer: "GGUFWriter", source: Source) -> None:
    """The tokenizer, filled up to the model's vocabulary; what would give other ids is refused."""
    definition = source.tokenizer.definition
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(find_pre_tokenizer(definition))
    if not definition.merges:
        raise TokenizerError("llama.cpp refuses a tokenizer without merges, such as this one")
    spelled = spell_vocab(definition, "GGUF")
    tokens = [f"[unused {id}]" for id in range(source.config.vocab_size)]
    types = [_UNUSED] * source.config.vocab_size
    for text, id in spelled.items():
        tokens[id], types[id] = text, _NORMAL
    for id in definition.special_tokens.values():
        types[id] = _CONTROL
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(spell_merges(definition, spelled))
    ids = source.special_ids
    for known, add in (
        (ids.begin, writer.add_bos_token_id),
        (ids.end, writer.add_eos_token_id),
        (ids.padding, writer.add_pad_token_id),
        (find_turn_end(source.tokenizer), writer.add_eot_token_id),
    ):
        if known is not None:
            add(known)
    if source.tokenizer.chat_template is not None:
        writer.add_chat_template(source.tokenizer.chat_template)
    # Our models see a text as it is.
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)


def find_pre_tokenizer(definition: TokenizerDefinition) -> str:
    """What llama.cpp calls the way a text is split, if it will cut text as we do."""
    pattern = definition.pattern
    found = _PRE_TOKENIZERS.get(pattern.name)
    if found is None:
        raise TokenizerError(
            f"llama.cpp has no pre-tokenizer for the split pattern {pattern.name}, only for "
            f"{', '.join(_PRE_TOKENIZERS)}: export to huggingface instead"
        )
    if definition.whole_words != (pattern.name in _WHOLE_WORDS):
        _check_merges_reach_whole_words(definition)
    return found


def _check_merges_reach_whole_words(definition: TokenizerDefinition) -> None:
    """Taking whole words changes no id where the merges lead to each of them anyway."""
    words = []
    for token in definition.ordinary_tokens().values():
        # No text holds part of a character by itself, so no pre-token is it.
        with contextlib.suppress(UnicodeDecodeError):
            words.append(token.decode())
    by_merges, whole = (
        Tokenizer.from_definition(dataclasses.replace(definition, whole_words=whole_words))
        for whole_words in (False, True)
    )
    for word in words:
        if by_merges.encode(word) != whole.encode(word):
            raise TokenizerError(
                f"llama.cpp would give other ids for {word!r:.60}, by what it takes for whole "
                f"words under the pattern {definition.pattern.name}: export to huggingface instead"
            )
