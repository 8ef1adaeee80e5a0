"""Run folders of tiny models with random weights, written without training."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch

from groundup.checkpoint import CheckpointFolder
from groundup.config import load_settings
from groundup.interop import import_huggingface
from groundup.model import TransformerLM
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.reference import train_bpe_reference

END = "<|endoftext|>"
TEXT = "Ada had a red kite. Ben lost the old drum. Who found the new boat? It's Eve's! " * 8
METRICS = [
    {"step": 4, "tokens": 256, "loss": 5.5, "validation_loss": 5.25, "bits_per_byte": 3.5},
    {"step": 6, "tokens": 384, "loss": 5.375},
    {"step": 7, "tokens": 448, "loss": 5.125, "validation_loss": 5.0, "bits_per_byte": 3.25},
]

CHECKPOINT_SHAPE: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "eos_token_id": 299,
    "bos_token_id": None,
}
FAMILIES: dict[str, Any] = {
    "llama": ("Llama", {}),
    "llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "llama, padded": ("Llama", {"vocab_size": 384}),
    "llama, theta": ("Llama", {"rope_parameters": {"rope_theta": 500.0}}),
    "qwen3": ("Qwen3", {"head_dim": 8}),
    "mistral": ("Mistral", {"sliding_window": None}),
}

MakeRun: TypeAlias = Callable[..., Path]
MakeCheckpoint: TypeAlias = MakeRun
Take: TypeAlias = Callable[[Path], Path]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """300 tokens of GPT-2's pattern."""
    vocab, merges = train_bpe_reference(TEXT, 300, [END])
    return Tokenizer(vocab, merges, [END])


@pytest.fixture(scope="session")
def write_run() -> MakeRun:
    """`write_run(runs, tokenizer, "name", qk_norm=True)`: a run folder at step 7."""

    def write(runs: Path, tokenizer: Tokenizer, name: str = "tiny", **settings: Any) -> Path:
        model = {"vocab_size": 300, "context_length": 32, "d_model": 32, "num_layers": 2}
        model |= {"num_heads": 4, "d_ff": 48, **settings}
        overrides = {"name": name, "runs_folder": str(runs), "model": model}
        config = load_settings(RunConfig, overrides=overrides)
        folder = RunFolder(runs / name)
        folder.path.mkdir(parents=True)
        folder.begin(config, tokenizer, {"groundup": "0.1.0", "git_commit": "abc"})
        torch.manual_seed(7)
        network = TransformerLM.from_config(config.model)
        fill_with_noise(network)
        CheckpointFolder(folder.checkpoints).save(7, network.state_dict(), {}, {}, metric=5.0)
        lines = [json.dumps(record) + "\n" for record in METRICS]
        folder.metrics_file.write_text("".join(lines), "utf-8")
        return folder.path

    return write


@pytest.fixture
def make_run(tmp_path: Path, tokenizer: Tokenizer, write_run: MakeRun) -> MakeRun:
    """`make_run("name", qk_norm=True)`: a run folder with the tokenizer above, changed as given."""

    def make(name: str = "tiny", tokenizer: Tokenizer = tokenizer, **settings: Any) -> Path:
        return write_run(tmp_path / "runs", tokenizer, name, **settings)

    return make


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints already made, by their arguments."""
    return {}


@pytest.fixture
def make_checkpoint(
    tmp_path: Path,
    tokenizer: Tokenizer,
    checkpoints: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> MakeCheckpoint:
    """`make_checkpoint("llama", mlp_bias=True)`: a folder written by save_pretrained."""

    def make(family: str = "llama", save: dict[str, Any] | None = None, **settings: Any) -> Path:
        asked = repr((family, save, settings))
        if asked not in checkpoints:
            checkpoints[asked] = tmp_path_factory.mktemp("checkpoint")
            write_checkpoint(checkpoints[asked], family, save or {}, settings)
            tokenizer.save(checkpoints[asked] / "tokenizer.json", "huggingface")
        return Path(shutil.copytree(checkpoints[asked], tmp_path / "checkpoint"))

    return make


def write_checkpoint(
    folder: Path, family: str, save: dict[str, Any], settings: dict[str, Any]
) -> None:
    transformers = pytest.importorskip("transformers")
    name, changes = FAMILIES[family]
    torch.manual_seed(3)
    settings = {**CHECKPOINT_SHAPE, **changes, **settings}
    dtype = settings.pop("dtype", torch.float32)
    config = getattr(transformers, f"{name}Config")(**settings)
    model = getattr(transformers, f"{name}ForCausalLM")(config).to(dtype)
    fill_with_noise(model)
    model.save_pretrained(folder, **save)


@pytest.fixture
def take(runs: Path) -> Take:
    """`take(folder)`: the run imported from a checkpoint."""
    return lambda folder: import_huggingface(folder, "taken", runs_folder=runs)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def load(folder: Path, **options: Any) -> Any:
    """The model that transformers loads from a folder."""
    if (folder / "modeling_groundup.py").exists():
        options["trust_remote_code"] = True
    load = pytest.importorskip("transformers").AutoModelForCausalLM.from_pretrained
    return load(folder, local_files_only=True, **options).eval()


def change_json(path: Path, **changes: Any) -> None:
    value = {**json.loads(path.read_text("utf-8")), **changes}
    path.write_text(json.dumps(value), "utf-8")


@torch.no_grad()
def fill_with_noise(model: torch.nn.Module) -> None:
    """Large and distinct weights, so that a wrong one changes the logits."""
    for parameter in model.parameters():
        noise = 0.3 * torch.randn_like(parameter)
        parameter.copy_(noise if parameter.ndim > 1 else 1 + noise)
