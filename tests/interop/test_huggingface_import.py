"""Checkpoints written by transformers become runs that compute the same, or are rejected by name
without leaving files."""

import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from groundup.checkpoint import CheckpointFolder
from groundup.errors import CheckpointError, ConfigError, GroundupError, TokenizerError
from groundup.files import hash_file
from groundup.generation import LanguageModel
from groundup.interop import export_huggingface, import_huggingface
from groundup.runs.folder import RunFolder

from .conftest import FAMILIES, MakeCheckpoint, Take, change_json, load

HALVES = [("llama", torch.float16), ("llama", torch.bfloat16)]


@pytest.mark.parametrize(
    ("family", "dtype"), [*((family, torch.float32) for family in FAMILIES), *HALVES]
)
def test_logits_agree_and_half_precision_is_widened(
    make_checkpoint: MakeCheckpoint, take: Take, family: str, dtype: torch.dtype
) -> None:
    folder = make_checkpoint(family, dtype=dtype)
    state, run = torch.get_rng_state(), take(folder)
    assert torch.equal(torch.get_rng_state(), state)
    ours = LanguageModel.load(run, device="cpu")
    assert {one.dtype for one in ours.model.parameters()} == {torch.float32}
    ids = torch.tensor([[*ours.tokenizer.encode("Ada had a red kite"), *range(20, 30)]])
    with torch.no_grad():
        assert (
            float((load(folder, dtype=torch.float32)(ids).logits - ours.model(ids)).abs().max())
            < 1e-4
        )


def test_shards_with_an_index_are_one_model(make_checkpoint: MakeCheckpoint, runs: Path) -> None:
    folder = make_checkpoint()
    whole = import_huggingface(folder, "whole", runs_folder=runs)
    shutil.rmtree(folder)
    make_checkpoint(save={"max_shard_size": "20KB"})
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    sharded = import_huggingface(folder, "sharded", runs_folder=runs)
    one, many = (CheckpointFolder(run / "checkpoints").newest() for run in (whole, sharded))
    assert hash_file(one.path / "model.safetensors") == hash_file(many.path / "model.safetensors")


def test_special_ids_and_origin_are_recorded(
    make_checkpoint: MakeCheckpoint, tmp_path: Path, take: Take
) -> None:
    folder = make_checkpoint()
    change_json(folder / "generation_config.json", eos_token_id=[299, 5], pad_token_id=7)
    run = take(folder)
    imported = RunFolder(run).read_environment()["imported"]
    assert imported["architecture"] == "LlamaForCausalLM" and imported["folder"] == "checkpoint"
    # All files that are read: config.json, weights, tokenizer.json and others.
    assert imported["files"] == {file.name: hash_file(file) for file in folder.iterdir()}
    export_huggingface(run, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "generation_config.json").read_text("utf-8"))
    exported_ids = {name: config[name] for name in config if name.endswith("_id")}
    assert exported_ids == {"eos_token_id": [299, 5], "pad_token_id": 7}
    assert LanguageModel.load(run).stop_ids == {299, 5}


def test_a_tokenizer_that_adds_a_bos_token_is_reported(
    make_checkpoint: MakeCheckpoint, take: Take, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_checkpoint()
    single = [{"SpecialToken": {"id": "<|endoftext|>"}}, {"Sequence": {"id": "A"}}]
    template = {"type": "TemplateProcessing", "single": single}
    processor = {"type": "Sequence", "processors": [{"type": "ByteLevel"}, template]}
    change_json(folder / "tokenizer.json", post_processor=processor)
    with caplog.at_level(logging.WARNING, "groundup"):
        take(folder)
    assert "<|endoftext|>" in caplog.text


def test_nothing_outside_the_folder_is_read(
    make_checkpoint: MakeCheckpoint, runs: Path, tmp_path: Path
) -> None:
    folder, secret = make_checkpoint(), tmp_path / "secret"
    secret.write_text("hidden")
    for name in ("chat_template.jinja", "tokenizer_config.json", "generation_config.json"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(secret)
        with pytest.raises(GroundupError, match=rf"{name} cannot be read: .* leads out of"):
            import_huggingface(folder, "run", runs_folder=runs)
        (folder / name).unlink()
    for name in ("model.safetensors", "config.json"):
        kept = (folder / name).rename(tmp_path / "kept")
        for replace in (lambda file: file.symlink_to("/dev/zero"), os.mkfifo):
            replace(folder / name)
            with pytest.raises(GroundupError, match=r"not a regular file|neither model"):
                import_huggingface(folder, "run", runs_folder=runs)
            (folder / name).unlink()
        kept.rename(folder / name)
    assert not runs.exists()
    # The layout of huggingface_hub's cache.
    snapshot = tmp_path / "cache" / "snapshots" / "main"
    blobs = tmp_path / "cache" / "blobs"
    snapshot.mkdir(parents=True)
    folder.rename(blobs)
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(Path("../../blobs") / file.name)
    import_huggingface(snapshot, "run", runs_folder=runs)


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
    (weights(lacking="model.norm.weight"), r"model.norm.weight \(missing instead of"),
    (weights({BIAS: torch.ones(32)}), rf"{BIAS} \(\(32,\) instead of nothing\)"),
    (weights({"lm_head.weight": torch.ones(299, 32)}), r"lm_head.weight \(\(299, 32\) instead of"),
    (weights({"model.norm.weight": torch.ones(32, dtype=torch.int8)}), "norm.weight is torch.int8"),
    (settings(tie_word_embeddings=True), r"tie_word_embeddings.*lm_head"),
    # An index may only name files in its own folder.
    *(
        (index({"model.norm.weight": name}), "not in its folder")
        for name in ("../model.safetensors", "/etc/passwd", "", "..", 7)
    ),
    (index({"a": "gone.safetensors"}), "gone.safetensors"),
    (index({}), "no weight_map"),
    (settings("tokenizer.json", normalizer={"type": "Prepend", "prepend": "▁"}), "normalizer"),
    (rename("tokenizer.json", "other.json"), r"tokenizer\.json"),
    *(
        (write("config.json", content), r"config\.json")
        for content in (b"{", b"[]", b"\xff", b"[" * 100_000)
    ),
    # Settings are checked against bounds and weights before a model is built.
    (settings(num_hidden_layers=10**9), "num_layers is 1000000000, but .* 10000"),
    (settings(hidden_size=10**18, head_dim=None), "d_model is 1000000000000000000, but"),
    (settings(vocab_size=10**8), r"model.embed_tokens.weight \(\(300, 32\) instead of"),
    (settings(vocab_size=256), "ids up to 299, but vocab_size"),
    (settings(max_position_embeddings=10**400), "context_length is 10000"),
    (settings(rope_theta=float("nan"), rope_parameters=None), "rope_theta is nan, but .* finite"),
]


@pytest.mark.parametrize(("damage", "complaint"), DAMAGES, ids=[text for _, text in DAMAGES])
def test_invalid_checkpoints_are_rejected_by_name(
    make_checkpoint: MakeCheckpoint, runs: Path, damage: Damage, complaint: str
) -> None:
    folder = make_checkpoint()
    damage(folder)
    with pytest.raises((CheckpointError, TokenizerError), match=complaint) as caught:
        import_huggingface(folder, "taken", runs_folder=runs)
    assert len(str(caught.value)) < 2_000 and not runs.exists()


def test_existing_runs_are_not_changed(make_checkpoint: MakeCheckpoint, runs: Path) -> None:
    folder = make_checkpoint()
    run = import_huggingface(folder, "taken", runs_folder=runs)
    before = hash_file(run / "environment.json")
    # Repeating the import, as after a kill, does nothing.
    assert import_huggingface(folder, "taken", runs_folder=runs) == run
    with pytest.raises(ConfigError, match="exists: choose another --name"):
        import_huggingface(folder, "taken", runs_folder=runs, context_length=4)
    (folder / "generation_config.json").write_text('{"temperature": 0.5}')
    with pytest.raises(ConfigError, match="exists: choose another --name"):
        import_huggingface(folder, "taken", runs_folder=runs)
    with pytest.raises(ConfigError, match="invalid run name"):
        import_huggingface(folder, "../taken", runs_folder=runs)
    assert hash_file(run / "environment.json") == before
