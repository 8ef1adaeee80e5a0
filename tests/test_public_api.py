"""The front door: which names it offers, where they come from, and that it stays small."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import groundup

PUBLIC_NAMES = {
    "CheckpointError": "groundup.errors",
    "ConfigError": "groundup.errors",
    "DataError": "groundup.errors",
    "GroundupError": "groundup.errors",
    "LanguageModel": "groundup.generation",
    "MissingExtraError": "groundup.errors",
    "ModelConfig": "groundup.model",
    "RunConfig": "groundup.runs",
    "Tokenizer": "groundup.tokenizer",
    "TokenizerError": "groundup.errors",
    "TransformerLM": "groundup.model",
    "open_shards": "groundup.data",
    "train": "groundup.training",
    "train_bpe": "groundup.tokenizer",
}

FRONT_DOOR = Path(groundup.__file__)


def test_the_public_names_are_exactly_these() -> None:
    assert dir(groundup) == groundup.__all__ == sorted(PUBLIC_NAMES)
    with pytest.raises(AttributeError, match="no attribute 'Tokeniser'"):
        _ = groundup.Tokeniser


@pytest.mark.parametrize(("name", "home"), PUBLIC_NAMES.items())
def test_a_public_name_is_the_one_of_its_home(name: str, home: str) -> None:
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
