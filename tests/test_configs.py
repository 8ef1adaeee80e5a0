"""Every settings file that comes with groundup loads, and describes what it says it does."""

from pathlib import Path

import pytest

from groundup.config import load_settings, save_yaml
from groundup.model.config import preset
from groundup.runs.config import RunConfig

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
TRAIN_CONFIGS = sorted((CONFIGS / "train").glob("*.yaml"))
# tests/experiments/test_spec.py loads and plans these.
SWEEP_CONFIGS = sorted((CONFIGS / "sweep").glob("*.yaml"))


def test_every_settings_file_is_of_a_known_kind() -> None:
    files = {path for path in CONFIGS.rglob("*") if path.is_file()}
    assert files == {*TRAIN_CONFIGS, *SWEEP_CONFIGS} and TRAIN_CONFIGS


@pytest.mark.parametrize("path", TRAIN_CONFIGS, ids=lambda path: path.stem)
def test_settings_files_load_survive_a_round_trip_and_name_their_run(
    path: Path, tmp_path: Path
) -> None:
    config = load_settings(RunConfig, path)
    save_yaml(tmp_path / "config.yaml", config)
    assert load_settings(RunConfig, tmp_path / "config.yaml") == config
    assert config.name == path.stem


def test_the_quickstart_settings_are_those_of_its_preset() -> None:
    config = load_settings(RunConfig, CONFIGS / "train" / "quickstart.yaml")
    model = preset("quickstart")
    of_text = {"vocab_size": model.vocab_size, "document_separator": None}
    assert config.model.document_separator == "auto"
    assert config.model.model_copy(update=of_text) == model
    # The quickstart chooses it for the machine, so that only its shards know it.
    assert "vocab_size" not in config.model.model_fields_set
