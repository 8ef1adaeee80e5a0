"""GGUF files read back with gguf's own reader."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from groundup.errors import ConfigError, MissingExtraError, TokenizerError
from groundup.files import hash_file
from groundup.interop import export_gguf, export_huggingface
from groundup.interop.gguf_vocabulary import express_vocabulary
from groundup.tokenizer import Tokenizer

from .conftest import MakeRun

gguf = pytest.importorskip("gguf")

END = "<|endoftext|>"
# Under llama3's pattern llama.cpp takes whole words; these merges never lead to abc.
MISSED = [(b"b", b"c"), (b"a", b"b"), (b"ab", b"c")]
TEXT = "Ada had a red kite. Ben lost the old drum. Who found the new boat? It's Eve's! "


def read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keys with their values, and tensors."""
    reader = gguf.GGUFReader(path)
    keys = {name: field.contents() for name, field in reader.fields.items()}
    return keys, {tensor.name: tensor for tensor in reader.tensors}


def values_of(tensor: Any) -> torch.Tensor:
    kind = tensor.tensor_type
    if kind == gguf.GGMLQuantizationType.BF16:
        data = np.array(tensor.data).view(np.int16)
        return torch.from_numpy(data).view(torch.bfloat16).float()
    return torch.from_numpy(np.array(tensor.data)).float()


def huggingface_weights(run: Path, folder: Path) -> dict[str, torch.Tensor]:
    """An export's weights, which are known to be right, under the names of GGUF."""
    from safetensors.torch import load_file

    export_huggingface(run, folder)
    weights = load_file(folder / "model.safetensors")
    architecture = gguf.MODEL_ARCH.QWEN3 if "qk" in run.name else gguf.MODEL_ARCH.LLAMA
    names = gguf.get_tensor_name_map(architecture, 2)
    return {names.get_name(name, (".weight",)): weight for name, weight in weights.items()}


def as_llama_cpp_permutes(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """What the converter of llama.cpp does to Llama's query and key rows."""
    rows = weight.reshape(num_heads, 2, weight.shape[0] // num_heads // 2, -1)
    return rows.swapaxes(1, 2).reshape(weight.shape)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_kv_heads": 2, "tie_embeddings": True},
        {"tie_embeddings": True, "embedding_scale": 1.0},
        {"qk_norm": True},
    ],
    ids=str,
)
def test_tensors_are_those_of_llama_cpps_converter(
    make_run: MakeRun, tmp_path: Path, settings: dict[str, Any]
) -> None:
    is_llama = "qk_norm" not in settings
    run = make_run("tiny" if is_llama else "qk", **settings)
    export_gguf(run, tmp_path / "tiny.gguf")
    keys, tensors = read(tmp_path / "tiny.gguf")
    assert keys["general.architecture"] == ("llama" if is_llama else "qwen3")
    expected = huggingface_weights(run, tmp_path / "huggingface")
    assert tensors.keys() == expected.keys()
    num_kv_heads = settings.get("num_kv_heads", 4)
    for name, weight in expected.items():
        if is_llama and name.endswith("attn_q.weight"):
            weight = as_llama_cpp_permutes(weight, 4)
        if is_llama and name.endswith("attn_k.weight"):
            weight = as_llama_cpp_permutes(weight, num_kv_heads)
        assert torch.equal(values_of(tensors[name]), weight), name
        assert tensors[name].shape.tolist() == list(weight.shape)[::-1], name


def test_settings_lineage_and_tokenizer_are_told(
    make_run: MakeRun, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    run = make_run(num_kv_heads=2, rope_theta=500.0, norm_eps=1e-3, vocab_size=304)
    export_gguf(run, tmp_path / "tiny.gguf")
    keys, _ = read(tmp_path / "tiny.gguf")
    told = {name.removeprefix("llama."): value for name, value in keys.items() if "llama." in name}
    assert told.pop("attention.layer_norm_rms_epsilon") == pytest.approx(1e-3)
    assert told == {
        "vocab_size": 304,
        "context_length": 32,
        "embedding_length": 32,
        "block_count": 2,
        "feed_forward_length": 48,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 8,
        "attention.value_length": 8,
        "rope.dimension_count": 8,
        "rope.freq_base": 500.0,
    }
    assert keys["general.architecture"] == "llama" and keys["general.name"] == "tiny"
    assert keys["general.file_type"] == gguf.LlamaFileType.ALL_F32
    assert " parameters in float32" in keys["general.description"]
    weights = run / "checkpoints" / "step_000007" / "model.safetensors"
    assert keys["groundup.checkpoint_weights"] == hash_file(weights)
    assert keys["groundup.tokenizer"] == tokenizer.definition.content_id()
    told = {name.removeprefix("tokenizer.ggml."): value for name, value in keys.items()}
    assert (told["model"], told["pre"]) == ("gpt2", "gpt-2")
    assert len(told["tokens"]) == len(set(told["tokens"])) == 304
    assert told["tokens"][299] == END
    assert told["token_type"] == [1] * 299 + [3] + [5] * 4
    assert len(told["merges"]) == len(tokenizer.merges)
    spelled = {token: id for id, token in enumerate(told["tokens"])}
    for merge, (left, right) in zip(told["merges"], tokenizer.merges, strict=True):
        parts = [tokenizer.vocab[spelled[part]] for part in merge.split(" ")]
        assert parts == [left, right]
    assert told["eos_token_id"] == told["bos_token_id"] == told["padding_token_id"] == 299
    assert not (told["add_bos_token"] or told["add_eos_token"] or told["add_space_prefix"])
    (tmp_path / "text.txt").write_bytes(TEXT.encode())
    for name, known in (("qwen2", "qwen2"), ("llama3", "llama-bpe"), ("deepseek", "deepseek-v3")):
        other = Tokenizer.train(tmp_path / "text.txt", 280, pattern=name)
        assert express_vocabulary(other, 280).pre_tokenizer == known


def test_the_chat_template_is_told(make_run: MakeRun, tmp_path: Path, tokenizer: Tokenizer) -> None:
    chat = tokenizer.with_chat()
    export_gguf(make_run(tokenizer=chat, vocab_size=302), tmp_path / "chat.gguf")
    keys, _ = read(tmp_path / "chat.gguf")
    assert keys["tokenizer.chat_template"] == chat.chat_template
    told = {name.removeprefix("tokenizer.ggml."): value for name, value in keys.items()}
    assert told["tokens"][300:] == ["<|im_start|>", "<|im_end|>"]
    assert told["token_type"][299:] == [3, 3, 3]
    assert (told["eos_token_id"], told["eot_token_id"]) == (299, 301)
    export_gguf(make_run("plain"), tmp_path / "plain.gguf")
    assert not any("chat" in key or "eot" in key for key in read(tmp_path / "plain.gguf")[0])


@pytest.mark.parametrize(("dtype", "kind"), [("float16", "F16"), ("bfloat16", "BF16")])
def test_half_precision_rounds_matrices_and_keeps_vectors(
    make_run: MakeRun, tmp_path: Path, dtype: Any, kind: str
) -> None:
    run = make_run()
    export_gguf(run, tmp_path / "whole.gguf")
    export_gguf(run, tmp_path / "half.gguf", dtype=dtype)
    whole, (keys, half) = read(tmp_path / "whole.gguf")[1], read(tmp_path / "half.gguf")
    assert keys["general.file_type"] == gguf.LlamaFileType[f"MOSTLY_{kind}"]
    for name, tensor in whole.items():
        expected, is_vector = values_of(tensor), len(tensor.shape) == 1
        assert half[name].tensor_type.name == ("F32" if is_vector else kind)
        if not is_vector:
            expected = expected.to(getattr(torch, dtype)).float()
        assert torch.equal(values_of(half[name]), expected), name


@pytest.mark.parametrize(("dtype", "levels"), [("q8_0", 127), ("q4_0", 8)])
def test_quantized_values_are_ours_to_half_a_step(
    make_run: MakeRun, tmp_path: Path, dtype: Any, levels: int
) -> None:
    run = make_run(d_ff=96, vocab_size=304)
    export_gguf(run, tmp_path / "whole.gguf")
    export_gguf(run, tmp_path / "small.gguf", dtype=dtype)
    whole, (keys, small) = read(tmp_path / "whole.gguf")[1], read(tmp_path / "small.gguf")
    assert keys["general.file_type"] == gguf.LlamaFileType[f"MOSTLY_{dtype.upper()}"]
    assert f"in {dtype}" in keys["general.description"]
    assert whole.keys() == small.keys()
    for name, tensor in small.items():
        expected, is_table = values_of(whole[name]), name in ("token_embd.weight", "output.weight")
        kind = "F32" if expected.ndim == 1 else "Q8_0" if is_table else dtype.upper()
        assert tensor.tensor_type.name == kind and tensor.shape.tolist() == [*expected.shape][::-1]
        found = torch.from_numpy(np.array(gguf.dequantize(tensor.data, tensor.tensor_type)))
        if kind == "F32":
            assert torch.equal(found, expected)
            continue
        blocks = expected.reshape(-1, 32)
        step = blocks.abs().amax(1, keepdim=True) / (127 if kind == "Q8_0" else levels)
        # The scale is rounded to 11 bits, and 4 bits have one level less on one side.
        most = step * (0.57 if kind == "Q8_0" else 1.01)
        assert bool(((found.reshape(-1, 32) - blocks).abs() <= most).all()), name
    odd = make_run("odd", d_ff=48)
    export_gguf(odd, tmp_path / "odd.gguf", dtype=dtype)
    kinds = {name: one.tensor_type.name for name, one in read(tmp_path / "odd.gguf")[1].items()}
    assert (
        kinds["blk.0.ffn_down.weight"] == "BF16" and kinds["blk.0.ffn_up.weight"] == dtype.upper()
    )


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
        (make_tokenizer("gpt2", AB), "no end of text"),
        (make_tokenizer("gpt2", [], END), "without merges"),
        (make_tokenizer("llama3", MISSED, END), "'abc'"),
    ],
)
def test_tokenizers_that_llama_cpp_would_read_otherwise_are_refused(
    make_run: MakeRun, tmp_path: Path, tokenizer: Tokenizer, complaint: str
) -> None:
    with pytest.raises((TokenizerError, ConfigError), match=complaint):
        export_gguf(make_run(tokenizer=tokenizer), tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


def test_a_file_is_replaced_by_force_alone_and_never_by_half(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, file = make_run(), tmp_path / "models" / "one.gguf"
    assert export_gguf(run, file) == ["one.gguf"]
    before = file.read_bytes()
    for target in (file, tmp_path / "one", tmp_path):
        with pytest.raises(ConfigError, match=target.name):
            export_gguf(run, target, dtype="float16")

    def replace(source: Any, target: Any) -> None:
        raise OSError("no room")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="no room"):
        patched.setattr("os.replace", replace)
        export_gguf(run, file, dtype="float16", force=True)
    assert file.read_bytes() == before and len(list(file.parent.iterdir())) == 1
    export_gguf(run, file, dtype="float16", force=True)
    assert len(file.read_bytes()) < len(before)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingExtraError, match=r"groundup\[gguf\]"):
        export_gguf(run, tmp_path / "other.gguf")
