"""`groundup data download`: a public corpus, fetched and checked."""

from pathlib import Path
from typing import Literal

from groundup.cli.arguments import Positional
from groundup.config import Settings
from groundup.errors import ConfigError


class Arguments(Settings):
    """Fetch a public corpus; a stopped download continues where it was."""

    corpus: Positional[Literal["tinystories", "openwebtext"]]
    """tinystories (2.3 GB) or openwebtext (a sample, 4.7 GB of .txt.gz)."""

    out: Path = Path("corpora")
    """The folder to put the files in."""


def run(arguments: Arguments) -> None:
    """Fetch the files and print their names."""
    from groundup.data.corpora import CORPORA, download_corpus
    from groundup.planner.quantities import show_bytes

    if arguments.out.exists() and not arguments.out.is_dir():
        raise ConfigError(f"--out {arguments.out} is a file; name a folder")
    for path in download_corpus(CORPORA[arguments.corpus], arguments.out):
        print(f"{path}: {show_bytes(path.stat().st_size)}")
