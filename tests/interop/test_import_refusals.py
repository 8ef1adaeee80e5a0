"""Checkpoints that cannot be imported are refused by name, and nothing is left behind."""

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

from .conftest import MakeCheckpoint, change_json

Damage = Callable[[Path], Any]


def rename(old: str, new: str) -> Damage:
    return lambda folder: (folder / old).rename(folder / new)


def write(name: str, content: bytes | str) -> Damage:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def settings(name: str = "config.json", **changes: Any) -> Damage:
    return lambda folder: change_json(folder / name, **changes)


def weights(added: dict[str, torch.Tensor] | None = None, lacking: str | None = None) -> Damage:
    def change(folder: Path) -> None:
        tensors = safetensors.torch.load_file(folder / "model.safetensors")
        tensors = {name: one for name, one in tensors.items() if name != lacking} | (added or {})
        safetensors.torch.save_file(tensors, folder / "model.safetensors")

    return change


def index(value: Any) -> Damage:
    return write("model.safetensors.index.json", json.dumps({"weight_map": value}))


BIAS = "model.layers.0.self_attn.q_proj.bias"
DAMAGES: list[tuple[Damage, str]] = [
    (rename("model.safetensors", "pytorch_model.bin"), "pickled"),
    (weights(lacking="model.norm.weight"), "lacks model.norm.weight"),
    (weights({BIAS: torch.ones(32)}), f"the model has no {BIAS}"),
    (weights({"lm_head.weight": torch.ones(299, 32)}), r"lm_head.weight \(checkpoint \(299, 32\)"),
    (weights({"model.norm.weight": torch.ones(32, dtype=torch.int8)}), "norm.weight is torch.int8"),
    (settings(tie_word_embeddings=True), r"tie_word_embeddings.*lm_head"),
    # An index names files of its own folder.
    *(
        (index({"model.norm.weight": name}), "not a file beside it")
        for name in ("../model.safetensors", "/etc/passwd", "", "..", 7)
    ),
    (index({"a": "gone.safetensors"}), "gone.safetensors"),
    (index({}), "no weight_map"),
    (index(["a.safetensors"]), "no weight_map"),
    (settings("tokenizer.json", normalizer={"type": "Prepend", "prepend": "▁"}), "normalizer"),
    (rename("tokenizer.json", "other.json"), r"tokenizer\.json"),
    *(
        (write("config.json", content), r"config\.json")
        for content in (b"", b"{", b"[]", b"\xff", b"[" * 100_000)
    ),
    # Settings are held against bounds and weights before a model is made.
    (settings(num_hidden_layers=10**9), "num_layers is 1000000000, but .* 10000"),
    (settings(hidden_size=10**18, head_dim=None), "d_model is 1000000000000000000, but"),
    (settings(vocab_size=10**8), r"differ of model.embed_tokens.weight \(checkpoint \(300, 32\)"),
    (settings(vocab_size=256), "ids up to 299, but vocab_size"),
    (settings(max_position_embeddings=10**400), "context_length is 10000"),
    (settings(rope_theta=float("nan"), rope_parameters=None), "rope_theta is nan, but .* finite"),
]


@pytest.mark.parametrize(("damage", "complaint"), DAMAGES, ids=[told for _, told in DAMAGES])
def test_a_checkpoint_that_cannot_be_imported_is_refused_by_name(
    make_checkpoint: MakeCheckpoint, runs: Path, damage: Damage, complaint: str
) -> None:
    folder = make_checkpoint()
    damage(folder)
    with pytest.raises((CheckpointError, TokenizerError), match=complaint) as caught:
        import_huggingface(folder, "taken", runs_folder=runs)
    assert len(str(caught.value)) < 2_000 and not runs.exists()


def test_a_run_that_exists_is_left_alone(make_checkpoint: MakeCheckpoint, runs: Path) -> None:
    folder = make_checkpoint()
    run = import_huggingface(folder, "taken", runs_folder=runs)
    before = hash_file(run / "environment.json")
    with pytest.raises(ConfigError, match="exists: choose another --name"):
        import_huggingface(folder, "taken", runs_folder=runs)
    with pytest.raises(ConfigError, match="no name for a run"):
        import_huggingface(folder, "../taken", runs_folder=runs)
    assert hash_file(run / "environment.json") == before
