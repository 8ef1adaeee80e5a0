"""`groundup data download`: a public corpus, fetched and checked."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from groundup.errors import ConfigError


@dataclass(frozen=True)
class Arguments:
    """Fetch a public corpus; a stopped download continues where it was."""

    corpus: Positional[Literal["tinystories", "openwebtext"]]
    """tinystories (2.3 GB) or openwebtext (a sample, 4.7 GB packed, 12.2 GB unpacked)."""

    out: Path = Path("corpora")
    """The folder to put the files in."""

    unpack: bool = False
    """Replace .gz files by what they hold; the other verbs read both."""

    base_url: str | None = None
    """Another server with the same files, such as a mirror."""


def run(arguments: Arguments) -> None:
    """Fetch the files and print their names."""
    from groundup.cli.progress import progress_bar
    from groundup.data.corpora import CORPORA, HUB
    from groundup.data.download import download_corpus
    from groundup.planner.quantities import show_bytes

    if arguments.out.exists() and not arguments.out.is_dir():
        raise ConfigError(f"--out {arguments.out} is a file; name a folder")
    with progress_bar(f"fetching {arguments.corpus}") as progress:
        paths = download_corpus(
            CORPORA[arguments.corpus],
            arguments.out,
            base_url=arguments.base_url or HUB,
            unpack=arguments.unpack,
            progress=progress,
        )
    for path in paths:
        print(f"{path}: {show_bytes(path.stat().st_size)}")
