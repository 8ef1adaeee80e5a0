"""Public corpora on the Hugging Face hub, fetched and checked against recorded hashes."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from groundup.errors import DataError, MissingExtraError
from groundup.files import hash_file


@dataclass(frozen=True)
class CorpusFile:
    """One file of a dataset repository, and what it hashes to."""

    repository: str
    name: str
    sha256: str


_TINYSTORIES, _OPENWEBTEXT = "roneneldan/TinyStories", "stanford-cs336/owt-sample"

CORPORA = {
    "tinystories": (
        CorpusFile(
            _TINYSTORIES,
            "TinyStoriesV2-GPT4-train.txt",
            "6418d412de72888f52b5142c761ac21a582f7d1166f0bfbdb5f03ccfdec90443",
        ),
        CorpusFile(
            _TINYSTORIES,
            "TinyStoriesV2-GPT4-valid.txt",
            "6874bae9a4c1a4e7edcf0e53b86c17817e9cf881fc75ff2368da457b80c0585d",
        ),
    ),
    "openwebtext": (
        CorpusFile(
            _OPENWEBTEXT,
            "owt_train.txt.gz",
            "b19ae88cfbc4016b304c348522455fe38ebac48fffed955adcc7191a89e38ccf",
        ),
        CorpusFile(
            _OPENWEBTEXT,
            "owt_valid.txt.gz",
            "bc73db5da2f19c360836b9c8a88094e13346ec83798c2f40060be39135768c80",
        ),
    ),
}


def download_corpus(files: Sequence[CorpusFile], folder: str | os.PathLike[str]) -> list[Path]:
    """Fetch files into `folder`; a stopped download continues, and a wrong file is an error.

    A mirror is named by the environment variable HF_ENDPOINT.
    """
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise MissingExtraError("downloading a corpus", "remote") from error
    paths = []
    for file in files:
        path = Path(folder) / file.name
        if not path.exists():
            try:
                hf_hub_download(
                    file.repository, file.name, repo_type="dataset", local_dir=Path(folder)
                )
            except Exception as error:
                raise DataError(f"{file.name} cannot be fetched: {error}") from error
        if (found := hash_file(path)) != f"sha256:{file.sha256}":
            raise DataError(
                f"{path} has the hash {found}, not the recorded sha256:{file.sha256}; delete it "
                f"and run the command again"
            )
        paths.append(path)
    return paths
