"""A run that learns from several folders of shards."""

from pathlib import Path
from typing import Any

import pytest

from groundup.data.prepare import prepare
from groundup.errors import ConfigError, DataError
from groundup.runs.config import DataConfig
from groundup.runs.folder import RunFolder
from groundup.tokenizer import Tokenizer
from groundup.training import train
from groundup.training.clock import Clock
from groundup.training.data import open_data

from .conftest import MakeConfig

END = "<|endoftext|>"


@pytest.fixture(scope="module")
def other(corpus_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of other text with the same tokenizer."""
    folder = tmp_path_factory.mktemp("other")
    text = END.join(f"{number} and {number + 1} make {2 * number + 1}." for number in range(300))
    (folder / "sums.txt").write_text(text)
    tokenizer = Tokenizer.load(corpus_folder / "tokenizer.json")
    prepare([folder / "sums.txt"], tokenizer, folder / "shards", validation_fraction=0.1)
    return folder / "shards"


def mixed(corpus: Path, other: Path, **more: Any) -> dict[str, Any]:
    return {"data.mix": [f"{corpus / 'shards'}=0.75", f"{other}=0.25"], **more}


def test_a_run_of_a_mix_resumes_bitwise_exact(
    check_resume: Any, corpus_folder: Path, other: Path
) -> None:
    masked = {"model.document_separator": "auto"}
    whole, _ = check_resume(mixed(corpus_folder, other, **masked), 5)
    environment = RunFolder(whole.run_folder).read_environment()
    assert list(environment["data"]["mix"]) == [str(other)]


def test_batches_come_from_all_folders_by_weight(
    make_config: MakeConfig, corpus_folder: Path, other: Path
) -> None:
    config = make_config("run", mixed(corpus_folder, other))
    data = open_data(config, RunFolder("nowhere"), {})
    loader = data.loader(config)
    first = open_data(make_config("alone"), RunFolder("nowhere"), {}).train.num_tokens
    assert sum(loader.order.starts(0, 10_000) < first) == 7500


def test_the_first_folder_measures_unless_another_is_named(tmp_path: Path) -> None:
    assert DataConfig(mix={"a": 0.5, "b": 1}).shards == Path("a")
    assert DataConfig(mix=("a=0.5", "b=1")).folders == {Path("a"): 0.5, Path("b"): 1.0}
    assert DataConfig(mix=("a=1", "b=1"), shards=Path("c")).shards == Path("c")
    assert DataConfig(mix=("a=1", "shards=1")).shards == Path("shards")
    assert DataConfig().folders == {Path("shards"): 1.0}
    with pytest.raises(ConfigError, match="takes NAME=WEIGHT"):
        DataConfig(mix=("a",))


def test_other_data_in_the_mix_are_noticed(
    make_config: MakeConfig, corpus_folder: Path, other: Path, tmp_path: Path
) -> None:
    config = make_config("run", mixed(corpus_folder, other))
    train(config, clock=Clock(stop_after=2))
    with pytest.raises(ConfigError, match=r"data\.mix"):
        train(make_config("run"), resume=True)
    stranger = Tokenizer({i: bytes([i]) for i in range(256)}, [], [END])
    text = tmp_path / "text.txt"
    text.write_text(END.join(f"A tale of {number} hats." for number in range(200)))
    prepare([text], stranger, tmp_path / "strange")
    strange = make_config("strange", mixed(corpus_folder, tmp_path / "strange"))
    with pytest.raises(DataError, match="was encoded with tokenizer"):
        train(strange)
    gone = make_config("gone", mixed(corpus_folder, tmp_path / "gone"))
    with pytest.raises(DataError, match="gone does not exist"):
        train(gone)
