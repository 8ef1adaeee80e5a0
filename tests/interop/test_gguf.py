"""GGUF files read back with gguf's own reader."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from groundup.errors import ConfigError, MissingExtraError, TokenizerError
from groundup.files import hash_file
from groundup.interop import export_gguf, export_huggingface
from groundup.interop.gguf import find_pre_tokenizer
from groundup.tokenizer import Tokenizer

from .conftest import END, TEXT, MakeCheckpoint, MakeRun, Take

gguf = pytest.importorskip("gguf")

# With llama3's pattern llama.cpp looks up whole words; these merges never produce abc.
MISSED = [(b"b", b"c"), (b"a", b"b"), (b"ab", b"c")]


def read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The metadata and the tensors."""
    reader = gguf.GGUFReader(path)
    keys = {name: field.contents() for name, field in reader.fields.items()}
    return keys, {tensor.name: tensor for tensor in reader.tensors}


def values_of(tensor: Any) -> torch.Tensor:
    found = np.array(gguf.dequantize(tensor.data, tensor.tensor_type))
    return torch.from_numpy(found).reshape([*tensor.shape][::-1])


@pytest.mark.parametrize("settings", [{}, {"tie_embeddings": True}, {"qk_norm": True}], ids=str)
def test_tensors_have_the_names_of_llama_cpps_converter(
    make_run: MakeRun, tmp_path: Path, settings: dict[str, Any]
) -> None:
    """tests/interop/test_every_setting.py tests the order of rows."""
    run = make_run(**settings)
    export_gguf(run, tmp_path / "tiny.gguf")
    export_huggingface(run, tmp_path / "huggingface")
    kind = "qwen3" if "qk_norm" in settings else "llama"
    keys, tensors = read(tmp_path / "tiny.gguf")
    assert keys["general.architecture"] == kind
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[kind.upper()], 2)
    theirs = load_file(tmp_path / "huggingface" / "model.safetensors")
    assert len(tensors) == len(theirs)
    for name, weight in theirs.items():
        found = values_of(tensors[names.get_name(name, (".weight",))])
        assert found.shape == weight.shape
        assert torch.equal(found.flatten().sort()[0], weight.flatten().sort()[0]), name


def test_metadata_has_settings_lineage_and_tokenizer(
    make_run: MakeRun, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    run = make_run(vocab_size=304)
    export_gguf(run, tmp_path / "tiny.gguf")
    keys, _ = read(tmp_path / "tiny.gguf")
    sizes = ("attention.key_length", "attention.value_length", "rope.dimension_count")
    assert [keys[f"llama.{name}"] for name in sizes] == [8, 8, 8]
    assert keys["general.name"] == "tiny"
    assert keys["general.file_type"] == gguf.LlamaFileType.ALL_F32
    assert " parameters in float32" in keys["general.description"]
    weights = run / "checkpoints" / "step_000007" / "model.safetensors"
    assert keys["groundup.checkpoint_weights"] == hash_file(weights)
    assert keys["groundup.tokenizer"] == tokenizer.definition.content_id
    meta = {name.removeprefix("tokenizer.ggml."): value for name, value in keys.items()}
    assert (meta["model"], meta["pre"]) == ("gpt2", "gpt-2")
    assert len(meta["tokens"]) == len(set(meta["tokens"])) == 300
    assert meta["tokens"][299] == END
    assert meta["token_type"] == [1] * 299 + [3]
    assert len(meta["merges"]) == len(tokenizer.merges)
    spelled = {token: id for id, token in enumerate(meta["tokens"])}
    for merge, (left, right) in zip(meta["merges"], tokenizer.merges, strict=True):
        parts = [tokenizer.vocab[spelled[part]] for part in merge.split(" ")]
        assert parts == [left, right]
    assert meta["eos_token_id"] == meta["bos_token_id"] == meta["padding_token_id"] == 299
    assert not (meta["add_bos_token"] or meta["add_eos_token"] or meta["add_space_prefix"])
    (tmp_path / "text.txt").write_bytes(TEXT.encode())
    for name, known in (("qwen2", "qwen2"), ("llama3", "llama-bpe"), ("deepseek", "deepseek-v3")):
        other = Tokenizer.train(tmp_path / "text.txt", 280, pattern=name)
        assert find_pre_tokenizer(other.definition) == known


def test_metadata_has_the_chat_template_and_begin_id(
    make_run: MakeRun,
    make_checkpoint: MakeCheckpoint,
    take: Take,
    tmp_path: Path,
    tokenizer: Tokenizer,
) -> None:
    chat = tokenizer.with_chat()
    export_gguf(make_run(tokenizer=chat, vocab_size=302), tmp_path / "chat.gguf")
    keys, _ = read(tmp_path / "chat.gguf")
    assert keys["tokenizer.chat_template"] == chat.chat_template
    meta = {name.removeprefix("tokenizer.ggml."): value for name, value in keys.items()}
    assert meta["tokens"][300:] == ["<|im_start|>", "<|im_end|>"]
    assert meta["token_type"][299:] == [3, 3, 3]
    assert (meta["eos_token_id"], meta["eot_token_id"]) == (299, 301)
    export_gguf(make_run("plain"), tmp_path / "plain.gguf")
    assert not any("chat" in key or "eot" in key for key in read(tmp_path / "plain.gguf")[0])
    export_gguf(take(make_checkpoint()), tmp_path / "no_begin.gguf")
    assert read(tmp_path / "no_begin.gguf")[0]["tokenizer.ggml.bos_token_id"] == 299


KINDS = {"float16": 2**-11, "bfloat16": 2**-8, "q8_0": 0.57 / 127, "q4_0": 1.01 / 8}
"""By dtype the largest error, in parts of the largest of the 32 values of a block: half a step. The
scale is rounded to 11 bits, and 4 bits have one level less on one side."""


@pytest.mark.parametrize("dtype", KINDS)
def test_matrices_are_within_half_a_quantization_step_and_vectors_exact(
    make_run: MakeRun, tmp_path: Path, dtype: Any
) -> None:
    run, short = make_run(d_ff=96, vocab_size=304), {"float16": "F16", "bfloat16": "BF16"}
    export_gguf(run, tmp_path / "whole.gguf")
    export_gguf(run, tmp_path / "small.gguf", dtype=dtype)
    whole, (keys, small) = read(tmp_path / "whole.gguf")[1], read(tmp_path / "small.gguf")
    usual = short.get(dtype, dtype.upper())
    assert keys["general.file_type"] == gguf.LlamaFileType[f"MOSTLY_{usual}"]
    assert f"in {dtype}" in keys["general.description"]
    assert whole.keys() == small.keys()
    for name, tensor in small.items():
        expected, found = values_of(whole[name]), values_of(tensor)
        is_q8 = dtype == "q4_0" and name in ("token_embd.weight", "output.weight")
        kind = "F32" if expected.ndim == 1 else "Q8_0" if is_q8 else usual
        assert tensor.tensor_type.name == kind and found.shape == expected.shape
        if kind == "F32":
            assert torch.equal(found, expected)
            continue
        blocks, errors = expected.reshape(-1, 32), (found - expected).reshape(-1, 32).abs()
        most = blocks.abs().amax(1, keepdim=True) * KINDS["q8_0" if is_q8 else dtype]
        assert bool((errors <= most).all()), name
    export_gguf(make_run("odd", d_ff=48), tmp_path / "odd.gguf", dtype=dtype)
    kinds = {name: one.tensor_type.name for name, one in read(tmp_path / "odd.gguf")[1].items()}
    assert kinds["blk.0.ffn_down.weight"] == short.get(dtype, "BF16")
    assert kinds["blk.0.ffn_up.weight"] == usual


def make_tokenizer(pattern: str, merges: list[tuple[bytes, bytes]], *special: str) -> Tokenizer:
    vocab = [*(bytes([byte]) for byte in range(256)), *map(b"".join, merges)]
    return Tokenizer(dict(enumerate(vocab)), merges, list(special), pattern=pattern)


AB = [(b"a", b"b")]


@pytest.mark.parametrize(
    ("tokenizer", "complaint"),
    [
        (make_tokenizer("cl100k", AB, END), "no pre-tokenizer"),
        (make_tokenizer("o200k", AB, END), "no pre-tokenizer"),
        (make_tokenizer(r"\w+|\W+", AB, END), "no pre-tokenizer"),
        (make_tokenizer("gpt2", AB), "no end-of-text"),
        (make_tokenizer("gpt2", [], END), "no merges"),
        (make_tokenizer("llama3", MISSED, END), "'abc'"),
    ],
)
def test_tokenizers_that_llama_cpp_would_read_differently_are_rejected(
    make_run: MakeRun, tmp_path: Path, tokenizer: Tokenizer, complaint: str
) -> None:
    with pytest.raises((TokenizerError, ConfigError), match=complaint):
        export_gguf(make_run(tokenizer=tokenizer), tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


def test_files_are_only_replaced_with_force_and_atomically(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, file = make_run(), tmp_path / "models" / "one.gguf"
    assert export_gguf(run, file) == ["one.gguf"]
    before = file.read_bytes()
    for target in (file, tmp_path / "one", tmp_path):
        with pytest.raises(ConfigError, match=target.name):
            export_gguf(run, target, dtype="float16")
    export_gguf(run, file, dtype="float16", force=True)
    assert len(file.read_bytes()) < len(before)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingExtraError, match=r"groundup\[gguf\]"):
        export_gguf(run, tmp_path / "other.gguf")
