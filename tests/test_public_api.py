"""The public API: its names, their origin, and that importing it stays cheap."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import groundup

ERRORS = "GroundupError CheckpointError ConfigError DataError MissingExtraError TokenizerError"
NAMES = {
    "errors": ERRORS,
    "generation": "LanguageModel",
    "model": "ModelConfig TransformerLM",
    "runs": "RunConfig",
    "tokenizer": "Tokenizer train_bpe",
    "data": "open_shards",
    "training": "train",
}
HOMES = {name: f"groundup.{home}" for home, names in NAMES.items() for name in names.split()}

FRONT_DOOR = Path(groundup.__file__)


def test_public_names_are_pinned() -> None:
    assert dir(groundup) == groundup.__all__ == sorted(HOMES)
    with pytest.raises(AttributeError, match="no attribute 'Tokeniser'"):
        _ = groundup.Tokeniser
    for name, home in HOMES.items():
        assert getattr(groundup, name) is getattr(importlib.import_module(home), name)


def test_importing_the_package_imports_nothing_else() -> None:
    script = (
        "import sys; before = set(sys.modules); import groundup\n"
        "own = {'groundup', 'groundup.lazy_exports'}\n"
        "sys.exit(' '.join(set(sys.modules) - before - own))"
    )
    command = [sys.executable, "-S", "-c", f"import typing, importlib\n{script}"]
    environment = {"PYTHONPATH": str(FRONT_DOOR.parent.parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stderr.strip() == ""
