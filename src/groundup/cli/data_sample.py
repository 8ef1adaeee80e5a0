"""`groundup data sample`: the built-in corpus of little stories."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from groundup.errors import ConfigError


@dataclass(frozen=True)
class Arguments:
    """Write the built-in corpus: little stories, as many as you ask for."""

    megabytes: float = 20.0
    """How much text, in millions of bytes; the last story is not cut."""

    seed: int = 0
    """The same seed gives the same stories."""

    out: Path = Path("stories.txt")
    """The file to write."""


def run(arguments: Arguments) -> None:
    """Write the file and say what is in it."""
    from groundup.cli.progress import progress_bar
    from groundup.data.samples import write_sample_corpus
    from groundup.planner.quantities import show_bytes
    from groundup.runtime import count_of

    if not 0 < arguments.megabytes < float("inf"):
        raise ConfigError(f"--megabytes {arguments.megabytes:g} must be more than 0")
    free = shutil.disk_usage(_nearest_folder(arguments.out)).free
    if arguments.megabytes > free / 1e6:
        raise ConfigError(
            f"--megabytes {arguments.megabytes:g} is more than the {show_bytes(free)} that are "
            f"free at {arguments.out}"
        )
    if arguments.out.is_dir():
        raise ConfigError(f"--out {arguments.out} is a folder; name the text file to write")
    with progress_bar("writing stories") as progress:
        corpus = write_sample_corpus(
            arguments.out, arguments.megabytes, arguments.seed, progress=progress
        )
    size = show_bytes(corpus.num_bytes)
    print(f"wrote {arguments.out}: {count_of(corpus.num_stories, 'story', 'stories')}, {size}")


def _nearest_folder(path: Path) -> Path:
    """The folder of a file to be written, or the one that its folder will be made in."""
    return next(folder for folder in path.resolve().parents if folder.is_dir())
