"""Public corpora: fetched once, and never taken for something else."""

import hashlib
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from groundup.data.corpora import CORPORA, CorpusFile, download_corpus
from groundup.errors import DataError

TEXT = b"Once upon a time"
FILE = CorpusFile("someone/stories", "stories.txt", hashlib.sha256(TEXT).hexdigest())


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What the hub is asked for; it answers with TEXT."""
    found: list[tuple[str, str]] = []

    def fetch(repository: str, name: str, *, repo_type: str, local_dir: Path) -> Any:
        assert repo_type == "dataset"
        found.append((repository, name))
        local_dir.mkdir(parents=True, exist_ok=True)
        (local_dir / name).write_bytes(TEXT)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetch)
    return found


def test_a_file_is_fetched_once_and_checked(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    out = tmp_path / "corpora"
    for _ in range(2):
        assert download_corpus([FILE], out) == [out / "stories.txt"]
    assert calls == [("someone/stories", "stories.txt")]
    (out / "stories.txt").write_bytes(b"something else")
    with pytest.raises(DataError, match="recorded"):
        download_corpus([FILE], out)


def test_what_the_hub_cannot_give_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    with pytest.raises(DataError, match="no route"):
        download_corpus([FILE], tmp_path)


def test_every_recorded_file_has_a_hash() -> None:
    for files in CORPORA.values():
        assert all(len(bytes.fromhex(file.sha256)) == 32 for file in files)
