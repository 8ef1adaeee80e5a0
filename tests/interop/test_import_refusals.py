"""Checkpoints that cannot be taken in are refused by name, and nothing is left behind."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from groundup.errors import CheckpointError, ConfigError, TokenizerError
from groundup.files import hash_file
from groundup.interop import import_huggingface

MakeCheckpoint = Callable[..., Path]


def change_json(path: Path, **changes: Any) -> None:
    value = {**json.loads(path.read_text("utf-8")), **changes}
    path.write_text(json.dumps(value), "utf-8")


def test_pickled_weights_are_refused(make_checkpoint: MakeCheckpoint, runs: Path) -> None:
    folder = make_checkpoint()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model.bin, a pickle.*safetensors"):
        import_huggingface(folder, "taken", runs_folder=runs)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(CheckpointError, match="has no weights"):
        import_huggingface(folder, "taken", runs_folder=runs)
    assert not runs.exists()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda one: one.pop("model.norm.weight"), "lacks model.norm.weight"),
        (
            lambda one: one.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(32)}),
            "the model has no model.layers.0.self_attn.q_proj.bias",
        ),
        (
            lambda one: one.update({"lm_head.weight": torch.ones(299, 32)}),
            r"lm_head.weight \(checkpoint \(299, 32\), model \(300, 32\)\)",
        ),
        (
            lambda one: one.update({"model.norm.weight": torch.ones(32, dtype=torch.int8)}),
            "model.norm.weight is int8",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(
    make_checkpoint: MakeCheckpoint, runs: Path, change: Callable[[Any], Any], complaint: str
) -> None:
    folder = make_checkpoint()
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    change(tensors)
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=complaint):
        import_huggingface(folder, "taken", runs_folder=runs)
    assert not runs.exists()


def test_a_tied_model_with_another_head_is_refused(
    make_checkpoint: MakeCheckpoint, runs: Path
) -> None:
    folder = make_checkpoint()
    change_json(folder / "config.json", tie_word_embeddings=True)
    with pytest.raises(CheckpointError, match=r"tie_word_embeddings.*lm_head"):
        import_huggingface(folder, "taken", runs_folder=runs)


@pytest.mark.parametrize("place", ["../model.safetensors", "/etc/passwd", "", "..", 7])
def test_an_index_names_files_of_its_own_folder(
    make_checkpoint: MakeCheckpoint, runs: Path, place: Any
) -> None:
    folder = make_checkpoint()
    index = {"weight_map": {"model.norm.weight": place}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
    with pytest.raises(CheckpointError, match="no file beside it"):
        import_huggingface(folder, "taken", runs_folder=runs)


def test_an_index_that_lies_is_named(make_checkpoint: MakeCheckpoint, runs: Path) -> None:
    folder = make_checkpoint()
    index = folder / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"model.norm.weight": "model.safetensors"}}', "utf-8")
    with pytest.raises(CheckpointError, match=r"model.safetensors holds lm_head.weight"):
        import_huggingface(folder, "taken", runs_folder=runs)
    index.write_text('{"weight_map": {"a": "gone.safetensors"}}', "utf-8")
    with pytest.raises(CheckpointError, match=r"gone.safetensors does not exist"):
        import_huggingface(folder, "taken", runs_folder=runs)
    index.write_text('{"weight_map": []}', "utf-8")
    with pytest.raises(CheckpointError, match="no weight_map"):
        import_huggingface(folder, "taken", runs_folder=runs)


def test_tokenizers_of_other_kinds_are_refused(make_checkpoint: MakeCheckpoint, runs: Path) -> None:
    folder = make_checkpoint()
    change_json(folder / "tokenizer.json", normalizer={"type": "Prepend", "prepend": "▁"})
    with pytest.raises(TokenizerError, match="normalizer Prepend"):
        import_huggingface(folder, "taken", runs_folder=runs)
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")
    with pytest.raises(CheckpointError, match="SentencePiece"):
        import_huggingface(folder, "taken", runs_folder=runs)
    (folder / "tokenizer.model").unlink()
    with pytest.raises(TokenizerError, match=r"neither a tokenizer\.json nor"):
        import_huggingface(folder, "taken", runs_folder=runs)


def test_a_vocabulary_greater_than_the_model_is_refused(
    make_checkpoint: MakeCheckpoint, runs: Path
) -> None:
    with pytest.raises(CheckpointError, match="ids up to 299, but vocab_size"):
        import_huggingface(make_checkpoint(vocab_size=256), "taken", runs_folder=runs)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_damaged_config_is_named(
    make_checkpoint: MakeCheckpoint, runs: Path, content: bytes
) -> None:
    folder = make_checkpoint()
    (folder / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        import_huggingface(folder, "taken", runs_folder=runs)


def test_a_run_that_exists_is_left_alone(make_checkpoint: MakeCheckpoint, runs: Path) -> None:
    folder = make_checkpoint()
    run = import_huggingface(folder, "taken", runs_folder=runs)
    before = hash_file(run / "environment.json")
    with pytest.raises(ConfigError, match="exists: choose another --name"):
        import_huggingface(folder, "taken", runs_folder=runs)
    with pytest.raises(ConfigError, match="cannot be that of a run"):
        import_huggingface(folder, "../taken", runs_folder=runs)
    assert hash_file(run / "environment.json") == before


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"num_hidden_layers": 10**9}, "num_layers is 1000000000, but .* 10000"),
        ({"num_hidden_layers": 9_999}, r"lacks .*model.layers.* more"),
        ({"hidden_size": 10**18, "head_dim": None}, "d_model is 1000000000000000000, but"),
        (
            {"vocab_size": 10**8},
            r"shapes differ of model.embed_tokens.weight \(checkpoint \(300, 32\)",
        ),
        ({"intermediate_size": 10**7}, r"shapes differ of .*mlp.gate_proj"),
        ({"max_position_embeddings": 10**400}, "context_length is 10000"),
        ({"rope_theta": float("nan"), "rope_parameters": None}, "rope_theta is nan, but .* finite"),
        ({"rms_norm_eps": float("inf")}, "norm_eps is inf, but .* finite"),
    ],
)
def test_settings_are_held_against_bounds_and_headers_before_weights_are_read(
    make_checkpoint: MakeCheckpoint, runs: Path, change: dict[str, Any], complaint: str
) -> None:
    folder = make_checkpoint()
    change_json(folder / "config.json", **change)
    with pytest.raises(CheckpointError, match=complaint) as caught:
        import_huggingface(folder, "taken", runs_folder=runs)
    assert len(str(caught.value)) < 2_000
    assert not runs.exists()


def test_a_deeply_nested_config_is_refused(make_checkpoint: MakeCheckpoint, runs: Path) -> None:
    folder = make_checkpoint()
    for depth in (900, 100_000):
        (folder / "config.json").write_text('{"a":' + "[" * depth + "]" * depth + "}", "utf-8")
        with pytest.raises(CheckpointError, match="nested too deep"):
            import_huggingface(folder, "taken", runs_folder=runs)
